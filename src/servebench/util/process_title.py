"""What others on this machine see of our own command line (`ps`, `/proc/PID/cmdline`): no secrets."""

import ctypes
import os
import sys
from pathlib import Path

from servebench.util.common_prefix import common_prefix_length
from servebench.util.redaction import redact, remember

ARGUMENTS_START = 48 - 3
"""`arg_start` is field 48 of /proc/PID/stat (proc(5)); what follows the command's name begins with field 3."""


def hide_secrets() -> None:
    """Overwrite the secrets of our own command line with stars, where the system lets us (Linux); else it stays.

    The words that Python gave us are not touched; their secrets are taken for secrets from now on.
    """
    words = sys.argv[1:]
    secrets = [
        (word, common_prefix_length(word, safe))
        for word, safe in zip(words, redact(words), strict=True)
        if word != safe
    ]
    if not secrets:
        return
    remember(*(word[start:] for word, start in secrets))
    try:
        seen = Path("/proc/self/cmdline").read_bytes()
        start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[ARGUMENTS_START])
    except (OSError, ValueError, IndexError):
        return
    for word, shared in secrets:
        raw, kept = os.fsencode(word), os.fsencode(word[:shared])
        place = seen.find(b"\0" + raw + b"\0")
        if start and place >= 0:
            ctypes.memset(start + place + 1 + len(kept), ord("*"), len(raw) - len(kept))
