"""Ask a program of this machine, such as a driver's, without depending on it."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from servebench.util.children import child_environment

PROBE_TIMEOUT_S = 4.0


def program_output(*command: str, env: Mapping[str, str] | None = None) -> str | None:
    """Return what a program prints; None when it is not there, fails or hangs. No probe is fatal."""
    try:
        # a session of its own, so that whatever the program started goes with it
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            env=child_environment(env),
        )  # fmt: skip
    except OSError:
        return None
    try:
        text = process.communicate(timeout=PROBE_TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        _abandon(process)
        return None
    return text.decode(errors="replace").strip() if process.returncode == 0 else None


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill it and do not wait for long: a program that hangs in a driver cannot even be killed."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)
    if process.returncode is None:
        process.returncode = -signal.SIGKILL  # else its garbage collection warns
