"""Signatures by which servebench recognises what this user wrote on this machine.

A document is signed with HMAC-SHA-256 (RFC 2104) by a key in the user's cache folder. The signature covers the kind of the
document, all of its content, the folder in which the command was given, and a scope: what the document must not be
separated from. So no part of a document can be changed, and no document can take the place of another.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servebench.util.bounded_file import STUDY_BYTES_MAX, read_bytes
from servebench.util.cache import cache_folder

FIELD = "seal"
KEY_FILE = "signing.key"
KEY_BYTES = 32
DIGEST = "sha256"


@dataclass(frozen=True)
class Origin:
    """Who wrote a document. `doubt`: why it is not known to be this user; null if it is. `here`: from this folder, so that
    the relative paths in it still mean the same; `folder` stands for the folder in its signature."""

    doubt: str | None
    here: bool = False
    folder: str | None = None

    @property
    def own(self) -> bool:
        """Whether this user wrote it on this machine."""
        return self.doubt is None


def signed(kind: str, document: Mapping[str, Any], *scope: str, folder: str | None = None) -> dict[str, Any]:
    """Return the document with this user's signature; without one if there is no place for a key. `folder` is that of an earlier
    signature: what is only written again still has the relative paths of the command that made it."""
    bare = _without(document)
    key = _user_key(make=True)
    if key is None:
        return bare
    here = folder or _tag(key, "folder", _current_folder())
    return {**bare, FIELD: {"folder": here, "mac": _tag(key, kind, here, *scope, _canonical(bare))}}


def origin_of(kind: str, document: Mapping[str, Any], *scope: str) -> Origin:
    """Return whether this user signed the document on this machine for this scope, and if not, why that is not known."""
    seal = document.get(FIELD)
    if not isinstance(seal, Mapping):
        return Origin("it is not signed, so it was made elsewhere")
    key = _user_key()
    if key is None:
        place = f"your key ({KEY_FILE} in the cache folder)"
        return Origin(f"its signature cannot be checked, because {place} does not exist or is not yours alone")
    folder, mac = str(seal.get("folder")), str(seal.get("mac")).encode(errors="replace")
    content = _canonical(_without(document))
    if hmac.compare_digest(mac, _tag(key, kind, folder, *scope, content).encode()):
        return Origin(None, here=folder == _tag(key, "folder", _current_folder()), folder=folder)
    return Origin("its signature is not yours, so it was made elsewhere or changed afterwards")


def _current_folder() -> str:
    with contextlib.suppress(OSError):
        return str(Path.cwd())
    return ""


def _without(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != FIELD}


def _canonical(document: Mapping[str, Any]) -> str:
    # as it will be read: keys are text then, and tuples lists
    plain = json.loads(json.dumps(document, default=str))
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def _tag(key: bytes, *parts: str) -> str:
    # as a JSON list, where no two sequences of parts look alike
    return hmac.new(key, json.dumps(parts).encode(), DIGEST).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file; an empty string if there is none that can be read."""
    try:
        return sha256(read_bytes(path, STUDY_BYTES_MAX))
    except OSError:
        return ""


def sha256(data: bytes) -> str:
    """Return the SHA-256 of data, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _user_key(*, make: bool = False) -> bytes | None:
    """Return this user's key, made at its first use if asked; null if there is none, or it may be known to others."""
    # there is no cache folder without a home, or none that can be written
    with contextlib.suppress(RuntimeError, OSError):
        path = cache_folder() / KEY_FILE
        if make and not os.path.lexists(path):
            _create(path)
        return _read_key(path)
    return None


def _read_key(path: Path) -> bytes | None:
    """Return the key in a file; null for one that others could have written or read."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            facts = os.fstat(descriptor)
            private = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o077
            key = os.read(descriptor, KEY_BYTES + 1) if private else b""
        finally:
            os.close(descriptor)
        return key if len(key) == KEY_BYTES else None
    return None


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # of mode 600
    try:
        os.write(descriptor, secrets.token_bytes(KEY_BYTES))
        os.fsync(descriptor)
        # a link, so that nobody sees a half-written key and the first one stays
        with contextlib.suppress(FileExistsError):
            Path(path).hardlink_to(name)
    finally:
        os.close(descriptor)
        Path(name).unlink()
