"""What others on this machine see of our process: no secrets of its command line (`ps`), and no files of its studies."""

import ctypes
import os
import sys
from pathlib import Path

from servebench.util.common_prefix import common_prefix_length
from servebench.util.redaction import redact, remember

SHARED_VARIABLE = "SERVEBENCH_SHARED"
PRIVATE_UMASK = 0o077
UNCHANGED = -1
"""What `subprocess` takes for a child with the umask of this process."""
_before = [UNCHANGED]
ARGUMENTS_START = 48 - 3
"""`arg_start` is field 48 of /proc/PID/stat (proc(5)); what follows the command's name begins with field 3."""


def hide_secrets() -> None:
    """Overwrite the secrets of our own command line with stars, where the system lets us (Linux); else it stays. The words that
    Python gave us are not touched; their secrets are taken for secrets from now on."""
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


def make_private() -> None:
    """Create files of this process for its user alone from now on, unless SERVEBENCH_SHARED=1 leaves that to the user's umask."""
    if os.environ.get(SHARED_VARIABLE, "") not in ("", "0"):
        return
    before = os.umask(PRIVATE_UMASK)
    os.umask(before | PRIVATE_UMASK)
    if _before[0] == UNCHANGED:
        _before[0] = before


def user_umask() -> int:
    """Return the user's own umask for programs that write elsewhere, such as an engine that fills a shared cache of models."""
    return _before[0]
