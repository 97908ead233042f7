from collections.abc import Callable
from typing import Any

import pytest

from servebench.contracts.results import Record

MS = 1_000_000


@pytest.fixture
def make() -> Callable[..., Record]:
    """Builds a record from milliseconds: sent, content events, ended; any field may be given as it is."""

    def build(
        sent: float | None = 0, events: list[float] | None = None, ended: float | None = None, **changes: Any
    ) -> Record:
        stamps = [round(at * MS) for at in (events or [])]
        sent_ns = None if sent is None else round(sent * MS)
        last = stamps[-1] if stamps else (sent_ns or 0)
        fields: dict[str, Any] = {
            "run_id": "run", "point": "c1", "request_id": "r", "session_id": None, "warmup": False,
            "scheduled_ns": sent_ns or 0, "connect_started_ns": None, "connected_ns": None, "sent_ns": sent_ns,
            "first_event_ns": stamps[0] if stamps else None, "first_output_ns": stamps[0] if stamps else None,
            "last_event_ns": stamps[-1] if stamps else None,
            "ended_ns": last if ended is None else round(ended * MS),
            "event_ns": stamps, "event_tokens": None, "reads_merged": 0, "prompt_tokens": 10,
            "planned_prompt_tokens": 10, "cached_tokens": None, "reasoning_tokens": None,
            "output_tokens": len(stamps), "asked_output_tokens": None, "counted_by": "usage", "finish_reason": "stop",
            "outcome": "ok", "http_status": 200, "error": None, "stamp_source": "kernel",
        }  # fmt: skip
        return Record(**(fields | changes))

    return build
