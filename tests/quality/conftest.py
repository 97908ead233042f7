import pytest

from servebench.contracts.quality import ItemAnswer
from support.records import record as make_record


class Memory:
    """Keeps answers as the log on disk does: those that failed are not known to the next attempt."""

    def __init__(self):
        self.known: dict[str, ItemAnswer] = {}
        self.added: list[str] = []

    def add(self, key, answer):
        self.added.append(key)
        if answer.error is None:
            self.known = {**self.known, key: answer}


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def record():

    def build(request_id, text="", **changes):
        return make_record(request_id, **({"text": text, "sent_ns": 0, "event_ns": [1, 5_000_000]} | changes))

    return build
