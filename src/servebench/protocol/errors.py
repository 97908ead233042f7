"""Find the reason in what a server sends when a request fails."""

import json
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from servebench.protocol.framing import HttpResponse
from servebench.protocol.json_values import decode_text, join_text, load_object, object_at
from servebench.util.redaction import redact_text
from servebench.util.safe_text import in_one_line

MESSAGE_CHARS_MAX = 300
"""How much of a server's error message is kept."""

CODE_CHARS_MAX = 64

SEARCHED = 16
"""How many times the length of a message is searched for keys."""

BODY_PIECES_MAX = 64
"""How many reads of an error body are searched for its message."""


def describe_http_error(response: HttpResponse) -> str:
    """Return the status of a response other than 2xx and the reason that its body gives, in one line."""
    reason = error_text(b"".join(data for _, data in response.body[:BODY_PIECES_MAX]))
    if not reason and "location" in response.headers:
        reason = shorten(f"redirected to {response.headers['location']}")
    return f"HTTP {response.status}: {reason}" if reason else f"HTTP {response.status}"


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return how many seconds a server asks to wait (`Retry-After`: seconds, or a date; RFC 9110, 10.2.3); None if unknown.
    Names of headers are in lower case."""
    value = headers.get("retry-after")
    if value is None:
        return None
    if re.fullmatch(r"[0-9]{1,8}(\.[0-9]{1,6})?", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now_s)
    except (ValueError, OverflowError, OSError):
        return None


def error_text(body: bytes, most: int = MESSAGE_CHARS_MAX) -> str:
    """Return the message in an error body, else the beginning of the body, in one line of at most `most` characters."""
    message = error_message(load_object(body.strip().removeprefix(b"data:")), most)
    return message or shorten(decode_text(body[: SEARCHED * most]), most)


def error_message(body: Any, most: int = MESSAGE_CHARS_MAX) -> str | None:
    """Return the message in the JSON of an error, in any of the known forms; None when there is none."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    if isinstance(error, dict) and error:
        # a router's own message may only be that there is another (OpenRouter, of what its provider said)
        raw = object_at(error, "metadata").get("raw")
        error = error.get("message") or error.get("detail") or error
        error = f"{error}: {raw}" if isinstance(raw, str) and isinstance(error, str) else error
    for value in (error, body.get("message"), body.get("detail")):
        if value:
            return shorten(join_text([value if isinstance(value, str) else as_json(value)]), most)
    return None


def error_code(body: Mapping[str, Any]) -> str | None:
    """Return the `code` of the error in an event, else its `type`, in one line; None where it has neither."""
    error = object_at(body, "error") or object_at(body, "response", "error") or body
    found = next((error[name] for name in ("code", "type") if isinstance(error.get(name), str | int)), None)
    return None if found is None else shorten(str(found), CODE_CHARS_MAX)


def shorten(text: str, most: int = MESSAGE_CHARS_MAX) -> str:
    """Return `text` in one line of at most `most` characters, without secrets."""
    # before it is cut: of half a key nobody can tell that it is one
    return in_one_line(redact_text(text[: SEARCHED * most]), most)


def as_json(value: Any) -> str:
    """Return the JSON of a value that a server sent, or that it cannot be shown."""
    try:
        return json.dumps(value)
    except RecursionError:
        return "a value that is nested too deeply to be shown"
