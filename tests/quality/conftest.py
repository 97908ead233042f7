from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from servebench.contracts.quality import ItemAnswer
from servebench.contracts.results import Record
from support.records import record as make_record


class Memory:
    """Keeps answers as the log on disk does: those that failed are not known to the next attempt."""

    def __init__(self) -> None:
        self.known: dict[str, ItemAnswer] = {}
        self.added: list[str] = []

    def add(self, key: str, answer: ItemAnswer) -> None:
        self.added.append(key)
        if answer.error is None:
            self.known = {**self.known, key: answer}


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def record() -> Callable[..., Record]:
    """Return the record of a request that was answered with a text."""

    def build(request_id: str, text: str = "", **changes: Any) -> Record:
        return make_record(request_id, **({"text": text, "sent_ns": 0, "event_ns": [1, 5_000_000]} | changes))

    return build
