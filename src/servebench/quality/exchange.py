"""One question to an endpoint that may be slow or mean harm: each answer within its time and size, and what is in it clean."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx

SHOWN = 60
COUNT_MAX = 2**31 - 1
"""The most that a column of counts holds."""


def client(headers: Mapping[str, str], *, timeout_s: float, verify_tls: bool) -> httpx.AsyncClient:
    """A client that asks for no encoding (a small compressed answer may be an endless one) and trusts no proxy of the
    environment. Raises ValueError, UnicodeError for a header that cannot be sent."""
    return httpx.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        timeout=timeout_s,
        verify=verify_tls,
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
    )


async def post(
    http: httpx.AsyncClient, url: str, body: Mapping[str, Any], *, timeout_s: float, bytes_max: int
) -> tuple[int, bytes]:
    """Status and body; of a body that is longer than `bytes_max`, a little more than that. Raises TimeoutError when the
    whole has not come in `timeout_s`, and httpx.HTTPError."""
    status, data, _ = await post_told(http, url, body, timeout_s=timeout_s, bytes_max=bytes_max)
    return status, data


async def post_told(
    http: httpx.AsyncClient, url: str, body: Mapping[str, Any], *, timeout_s: float, bytes_max: int
) -> tuple[int, bytes, float | None]:
    """As `post`, and the seconds after which the server wants to be asked again, where it says so (`Retry-After`)."""
    found = bytearray()
    async with asyncio.timeout(timeout_s), http.stream("POST", url, json=dict(body)) as response:
        async for piece in response.aiter_raw():
            found += piece
            if len(found) > bytes_max:
                break
        return response.status_code, bytes(found), _wait_s(response.headers.get("Retry-After"))


def _wait_s(told: str | None) -> float | None:
    """Seconds; a date, or what is no number, tells nothing."""
    return float(told) if told is not None and told.isascii() and told.isdecimal() and len(told) < 9 else None


def completion(data: bytes, *, chat: bool = True) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """The first choice of a completion, its text, and the usage. Raises ValueError with what is wrong."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"no JSON, it begins {line(data[: 4 * SHOWN].decode(errors='replace'), SHOWN)!r}") from None
    try:
        choice = document["choices"][0]
        text = choice["message"]["content"] if chat else choice["text"]
        usage = document.get("usage")
    except (KeyError, IndexError, TypeError, AttributeError):
        wanted = "choices[0].message.content" if chat else "choices[0].text"
        raise ValueError(f"it has no {wanted}") from None
    if text is not None and not isinstance(text, str):
        raise ValueError("its content is no text")
    return choice, clean(text or ""), usage if isinstance(usage, dict) else {}


def said(data: bytes, most: int) -> str:
    """What a server says of its error, in one short line: the message of its JSON, else the text."""
    text = data[: 64 * most].decode(errors="replace")
    try:
        document = json.loads(text)
        error = document.get("error", document)
        text = error if isinstance(error, str) else str(error["message"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return line(text, most)


def line(text: str, most: int) -> str:
    """One line that a terminal can show: blanks joined, what cannot be printed a question mark."""
    words = " ".join(text.split())[:most]
    return "".join(one if one.isprintable() else "?" for one in words)


def clean(text: str) -> str:
    """Text that can be stored: half of a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def count(value: object) -> int | None:
    """A count that a server sent, if it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX else None
