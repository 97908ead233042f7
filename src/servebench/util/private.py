"""Files of studies belong to their user: answers, logs and manifests are not for others on the machine."""

import os

SHARED_VARIABLE = "SERVEBENCH_SHARED"
PRIVATE_UMASK = 0o077
UNCHANGED = -1
"""What `subprocess` takes for a child with the umask of this process."""
_before = [UNCHANGED]


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
