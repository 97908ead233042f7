from collections.abc import Callable
from functools import partial

import pytest

from servebench.contracts.results import Record
from support.records import record_ms


@pytest.fixture
def make() -> Callable[..., Record]:
    """Return a record from milliseconds: sent, content events, ended."""
    return partial(record_ms, run_id="run", point="c1", request_id="r")
