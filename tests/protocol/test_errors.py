"""What a server says when it does not answer."""

import pytest

from servebench.protocol.errors import retry_after_s

NOW_S = 1_700_000_000.0
"""Tue, 14 Nov 2023 22:13:20 GMT."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("2", 2.0),
        ("0.5", 0.5),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("9" * 400, None),
        ("Tue, 99 Nov 99999 22:13:50 GMT", None),
    ],
)
def test_retry_after(value, expected):
    """Seconds or a date; nothing for anything else."""
    assert retry_after_s({} if value is None else {"retry-after": value}, NOW_S) == expected
