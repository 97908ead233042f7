"""What a server says when it does not answer."""

import pytest

from servebench.protocol.errors import error_code, retry_after_s

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


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"error": {"message": "x", "code": 429}}, "429"),
        ({"error": {"message": "x", "type": "tokens", "code": "rate_limit_exceeded"}}, "rate_limit_exceeded"),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "x"}}, "rate_limit_error"),
        ({"object": "error", "message": "x", "type": "TooManyRequestsError", "code": 429}, "429"),
        ({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}, "rate_limit_exceeded"),
        ({"error": {"message": "x", "code": None}}, None),
        ({"error": "x"}, None),
        ({"error": {"code": ["429"], "type": {}}}, None),
    ],
)
def test_the_code_of_an_error_in_an_event(event, code):
    """OpenRouter's, OpenAI's, Anthropic's and vLLM's; nothing where there is none."""
    assert error_code(event) == code
