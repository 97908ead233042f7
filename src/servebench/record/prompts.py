"""What a trace keeps of a prompt: salted hashes of its blocks, and which earlier prompt it continues."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

PROMPT_FIELDS = ("tools", "system", "instructions", "prompt", "input", "messages")
"""The fields of a body that models read, in the order in which chat templates put them."""
MOVING = "cache_control"
"""A key that clients move from message to message; no model reads it."""
WORD_MAX = 1024
"""A longer word is an encoded image, sound or file."""
END = "\x1e"
ID_BITS = 52
"""Readers that hold numbers as doubles can read such ids."""
ENDS_MAX = 200_000
"""How many prompts wait to be continued; then all of them are forgotten."""


class Hasher:
    """Hashes with a key that is in no file: without it nobody can try what a hashed text may have been."""

    def __init__(self, salt: str, block_bytes: int) -> None:
        self._key, self.block_bytes = hashlib.sha256(salt.encode()).digest(), block_bytes

    def digest(self, data: bytes, before: bytes = b"") -> bytes:
        """Return 8 bytes that depend on the salt, on `before` and on `data`."""
        return hashlib.blake2b(before + data, key=self._key, digest_size=8).digest()

    def blocks(self, data: bytes) -> list[bytes]:
        """Return a digest for each whole block; it depends on all blocks before, so equal ones mean an equal beginning."""
        found = [b""]
        for start in range(0, len(data) - self.block_bytes + 1, self.block_bytes):
            found.append(self.digest(data[start : start + self.block_bytes], found[-1]))
        return found[1:]


def hash_id(digest: bytes) -> int:
    """Return a digest as the number that a trace has."""
    return int.from_bytes(digest) >> (8 * len(digest) - ID_BITS)


def prompt_text(body: Mapping[str, Any], hasher: Hasher) -> str:
    """Return the text of a prompt: one that continues a conversation begins with the text before. Images stand as hashes."""
    values = [body[name] for name in PROMPT_FIELDS if body.get(name) is not None]
    return "".join(one if isinstance(one, str) else "".join(_texts(one, hasher)) for one in values)


def _texts(value: object, hasher: Hasher) -> Iterator[str]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += [part for key in reversed(one) if key != MOVING for part in (one[key], key)]
        elif isinstance(one, list):
            left += reversed(one)
        elif isinstance(one, str) and len(one) > WORD_MAX and one.isascii() and len(one.split(None, 1)) == 1:
            yield hasher.digest(one.encode()).hex() + END
        elif one is not None:
            yield f"{one}{END}"


class SessionTurn(NamedTuple):
    """The number of a prompt's session, and when the answer before it ended (null for a first one)."""

    session: int
    before_ns: int | None


class Sessions:
    """Finds the session of each prompt: that of the longest earlier prompt with which it begins, unless another one has continued
    that already (a sub-agent, a retry); then it is a session of its own."""

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._count = 0
        # the last prompt of each session: what follows its last whole block as a digest, and by that block the lengths of it
        self._ends: dict[tuple[bytes, bytes], SessionTurn] = {}
        self._lengths: dict[bytes, set[int]] = {}

    def place(self, data: bytes, blocks: list[bytes], ended_ns: int) -> SessionTurn:
        """Return the turn that a prompt is, whose answer ended at `ended_ns`."""
        found = self._continued(data, blocks)
        self._count += found is None
        session = self._count if found is None else found.session
        if len(self._ends) > ENDS_MAX:
            self._ends.clear()
            self._lengths.clear()
        tip, tail = (blocks or [b""])[-1], data[len(blocks) * self._hasher.block_bytes :]
        self._ends[tip, self._hasher.digest(tail, tip)] = SessionTurn(session, ended_ns)
        self._lengths.setdefault(tip, set()).add(len(tail))
        return SessionTurn(session, None if found is None else found.before_ns)

    def _continued(self, data: bytes, blocks: list[bytes]) -> SessionTurn | None:
        """Return the session that a prompt continues, and when the answer before it ended; None for a new one."""
        for whole in range(len(blocks), -1, -1):
            tip = blocks[whole - 1] if whole else b""
            rest = data[whole * self._hasher.block_bytes :][: self._hasher.block_bytes]
            for length in sorted(self._lengths.get(tip, ()), reverse=True):
                if length < len(rest) and (
                    found := self._ends.pop((tip, self._hasher.digest(rest[:length], tip)), None)
                ):
                    return found
        return None
