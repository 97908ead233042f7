from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from servebench.contracts.quality import Answer
from servebench.contracts.results import Record


class Memory:
    """Keeps answers as the log on disk does: those that failed are not known to the next attempt."""

    def __init__(self) -> None:
        self.known: dict[str, Answer] = {}
        self.added: list[str] = []

    def add(self, key: str, answer: Answer) -> None:
        self.added.append(key)
        if answer.error is None:
            self.known = {**self.known, key: answer}


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def record() -> Callable[..., Record]:
    """Builds the record of a request that was answered with a text; any field may be given."""

    def build(request_id: str, text: str = "", **changes: Any) -> Record:
        fields: dict[str, Any] = {
            "run_id": "run", "point": "c1", "request_id": request_id, "session_id": None, "warmup": False,
            "scheduled_ns": 0, "connect_started_ns": None, "connected_ns": None, "sent_ns": 0, "first_event_ns": 1,
            "first_output_ns": 1, "last_event_ns": 5_000_000, "ended_ns": 5_000_000, "event_ns": [1, 5_000_000],
            "event_tokens": None, "reads_merged": 0, "prompt_tokens": 7, "planned_prompt_tokens": 7,
            "cached_tokens": None, "reasoning_tokens": None, "output_tokens": 3, "asked_output_tokens": 64,
            "counted_by": "usage", "finish_reason": "stop", "outcome": "ok", "http_status": 200, "error": None,
            "stamp_source": "kernel", "text": text,
        }  # fmt: skip
        return Record(**(fields | changes))

    return build
