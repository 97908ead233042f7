"""What others on this machine see of our own command line (`ps`, `/proc/PID/cmdline`): no secrets."""

import ctypes
import itertools
import os
import sys
from pathlib import Path

from servebench.util.redaction import redact, remember

ARGUMENTS_START = 48 - 3
"""`arg_start` is field 48 of /proc/PID/stat (proc(5)); what follows the command's name begins with field 3."""


def hide_secrets() -> None:
    """Overwrite the secrets of our own command line with stars, where the system lets us (Linux); else it stays.

    The words that Python gave us are not touched; their secrets are taken for secrets from now on.
    """
    words = sys.argv[1:]
    clean = redact(words)
    if clean == words:
        return
    for word, safe in zip(words, clean, strict=True):
        if word != safe:
            remember(_secret_part(word, safe))
    try:
        seen = Path("/proc/self/cmdline").read_bytes()
        start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[ARGUMENTS_START])
    except (OSError, ValueError, IndexError):
        return
    for word, safe in zip(words, clean, strict=True):
        if word == safe:
            continue
        raw, kept = os.fsencode(word), os.fsencode(_shared_start(word, safe))
        place = seen.find(b"\0" + raw + b"\0")
        if start and place >= 0:
            hidden = len(raw) - len(kept)
            ctypes.memset(start + place + 1 + len(kept), ord("*"), hidden)


def _shared_start(word: str, safe: str) -> str:
    same = (a == b for a, b in zip(word, safe, strict=False))
    return word[: sum(itertools.takewhile(bool, same))]


def _secret_part(word: str, safe: str) -> str:
    return word[len(_shared_start(word, safe)) :]
