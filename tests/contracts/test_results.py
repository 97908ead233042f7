"""What a record says."""

import pytest

from servebench.contracts.results import refused
from support.records import record


@pytest.mark.parametrize(
    ("code", "expected"),
    [("429", True), ("rate_limit_exceeded", True), ("rate_limit_error", True), ("TooManyRequestsError", True),
     ("503", True), ("overloaded_error", True), ("500", False), ("4290", False), ("load", False), (None, False)],
)  # fmt: skip
def test_a_refusal_inside_an_answer(code, expected):
    assert refused(record("r0", outcome="stream_error", http_status=200, error_code=code)) is expected
    assert not refused(record("r0", outcome="timeout", http_status=200, error_code=code))
