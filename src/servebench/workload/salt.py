"""Text that makes a prompt unlike every other from its first character on."""

from __future__ import annotations

import hashlib
import random

from servebench.contracts.request import Message, Request

SALT_CHARACTERS = 12
SALT_TOKENS_MAX = 16
"""No tokenizer needs more for a salt and what parts it from the text before it: at worst a token a character."""


def salt(seed: int, stream: str, index: int) -> str:
    """Twelve hexadecimal characters (48 bits), fixed by the three."""
    return hashlib.sha256(f"{seed}/{stream}/{index}".encode()).hexdigest()[:SALT_CHARACTERS]


def generator(seed: int, stream: str) -> random.Random:
    """A random generator of its own for each stream, the same in every process."""
    return random.Random(f"{seed}/{stream}")


def as_request(text: str, api: str, request_id: str, **more: object) -> Request:
    """A prompt as a chat of one turn or as a completion, as the workload's `api` says."""
    if api == "chat":
        return Request(request_id=request_id, messages=(Message("user", text),), **more)  # type: ignore[arg-type]
    return Request(request_id=request_id, prompt=text, **more)  # type: ignore[arg-type]
