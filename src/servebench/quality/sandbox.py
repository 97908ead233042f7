"""Runs a Python program that nobody has read, inside bubblewrap: it sees no network, no file of the user, and ends.

What holds it: namespaces of its own (users, processes, network, IPC, hostname), a read-only view of the interpreter and
the system libraries and nothing else, one small folder in memory to write to, an empty environment, no capabilities, a
system call filter (no further process or thread, no namespace, no shared memory outside the limits), and limits on CPU
time, memory, file size and open files. Time by the wall and the length of what it prints are bounded from outside.
"""

from __future__ import annotations

import functools
import os
import platform
import secrets
import selectors
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from servebench.util.errors import PreflightError

INSTALL = "install it ('apt-get install bubblewrap', 'dnf install bubblewrap')"
FOLDER = "/box"
"""The one folder inside that can be written."""

SandboxOutcome = Literal["passed", "failed", "left_early", "timeout", "memory", "too_much_output", "killed"]
"""passed: the program ran to its end. failed: it raised. left_early: it ended itself before its end. timeout: too much
CPU time or time by the wall. memory: it asked for more than it may have. killed: by another signal."""


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What a program may use. `folder_bytes` is the size of the folder that it may write to, and of any one file."""

    wall_s: float = 20.0
    cpu_s: int = 5
    memory_bytes: int = 256 * 2**20
    folder_bytes: int = 16 * 2**20
    output_bytes: int = 64 * 2**10
    open_files: int = 64


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    """How a program ended, and the last line that it printed (an error's, where there was one)."""

    outcome: SandboxOutcome
    last_line: str
    elapsed_s: float


# The limits are set inside, after bubblewrap has made its processes: they bind nothing but the program. That it began, and
# that its end was reached, goes through a pipe, because a status of 0 is also that of a program that leaves in its middle,
# and anything may be printed. A program made to cheat its own test may find the mark; to get out, it is of no use.
_INSIDE = """\
import os, resource, sys
limits, mark = {limits!r}, os.read({mark_fd}, 64)
for name, soft, hard in limits:
    resource.setrlimit(getattr(resource, name), (soft, hard))
names = {{"__name__": "program"}}
os.write({end_fd}, b"{began}")
try:
    with open("/program.py") as file:
        text = file.read()
    exec(compile(text, "/program.py", "exec"), names)
    sys.stdout.flush()
except MemoryError:
    os._exit(99)
os.write({end_fd}, mark)
os._exit(0)
"""
_MEMORY_STATUS = 99
_BEGAN = b"began "

# system calls that a program needs for nothing that it may do, by machine: making processes and namespaces, memory that
# RLIMIT_AS does not count, and the doors through which a kernel's faults have been reached most often
_CLONE3 = 435
_FORBIDDEN = {
    "x86_64": (
        0xC000003E,
        {
            "clone": 56, "fork": 57, "vfork": 58, "shmget": 29, "semget": 64, "msgget": 68, "ptrace": 101,
            "personality": 135, "pivot_root": 155, "mount": 165, "umount2": 166, "add_key": 248, "request_key": 249,
            "keyctl": 250, "unshare": 272, "perf_event_open": 298, "setns": 308, "process_vm_readv": 310,
            "process_vm_writev": 311, "memfd_create": 319, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
            "memfd_secret": 447,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "clone": 220, "shmget": 194, "semget": 190, "msgget": 186, "ptrace": 117, "personality": 92,
            "pivot_root": 41, "mount": 40, "umount2": 39, "add_key": 217, "request_key": 218, "keyctl": 219,
            "unshare": 97, "perf_event_open": 241, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
            "memfd_create": 279, "bpf": 280, "userfaultfd": 282, "io_uring_setup": 425, "memfd_secret": 447,
        },
    ),
}  # fmt: skip
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000


def syscall_filter(machine: str) -> bytes:
    """A seccomp program (classic BPF, `struct sock_filter` in a row) that refuses what `_FORBIDDEN` names.

    clone3 says that it does not exist, so that libraries ask for clone, which says no. Another architecture's numbers,
    x32's among them, end the program. Raises KeyError for a machine without a table.
    """
    arch, numbers = _FORBIDDEN[machine]
    jumps = sorted(numbers.values())
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    steps += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]
    steps += [(_EQUAL, len(jumps) - place, 0, number) for place, number in enumerate(jumps)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def run_program(text: str, limits: SandboxLimits = SandboxLimits()) -> SandboxResult:
    """Run a Python program in a fresh sandbox; nothing of it is left when this returns, whatever it did.

    Raises PreflightError where no sandbox can be had: the program is then not run at all.
    """
    require_sandbox()
    return _run(_bwrap(), text, limits)


@functools.cache
def require_sandbox() -> None:
    """Try to break out, once a process. Raises PreflightError, with what to do, when there is no sandbox or it leaks."""
    result = _run(_bwrap(), _PROBE.format(home=str(Path.home())), SandboxLimits())
    if result.outcome != "passed":
        raise PreflightError(
            f"generated code is not run: the sandbox of bubblewrap does not hold on this machine ({result.outcome}: "
            f"{result.last_line or 'no word'}); allow user namespaces, or leave quality=humaneval out"
        )


# each line must fail or be empty inside
_PROBE = """\
import os, socket
assert os.getpid() < 100 and set(os.environ) <= {{"PATH", "LC_ALL", "PWD", "LC_CTYPE"}}, "the environment shows"
try:
    os.fork()
except OSError:
    pass
else:
    os._exit(7)
for place in ("/", "/tmp", "/usr", "/dev/shm", "/etc", {home!r}):
    try:
        open(os.path.join(place, ".servebench-leak"), "w").close()
    except OSError:
        pass
    else:
        os.remove(os.path.join(place, ".servebench-leak"))
        raise AssertionError("it can write to " + place)
assert not os.path.exists("/home") and not os.path.exists("/root/.ssh"), "the user's files show"
try:
    socket.create_connection(("1.1.1.1", 53), timeout=0.2)
except OSError as error:
    assert error.errno == 101, "not cut from the network: " + str(error)
else:
    raise AssertionError("it reaches the network")
"""


def _bwrap() -> str:
    found = shutil.which("bwrap")
    if found is None:
        raise PreflightError(f"generated code is only run inside bubblewrap, and bwrap is not installed; {INSTALL}")
    if platform.machine() not in _FORBIDDEN:
        raise PreflightError(
            f"generated code is not run on {platform.machine()}: the sandbox knows the system calls of "
            f"{' and '.join(_FORBIDDEN)}; leave quality=humaneval out"
        )
    return found


def _interpreter() -> tuple[str, list[str]]:
    """The interpreter below any virtual environment, and what it needs of the file system beside /usr and /lib.

    Not its whole prefix: that may be the user's home.
    """
    executable = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    needed = [executable, Path(sysconfig.get_path("stdlib")).resolve().parent]
    if executable.is_relative_to("/nix/store"):
        needed = [Path("/nix/store")]
    return str(executable), [str(place) for place in needed if not place.is_relative_to("/usr")]


def _arguments(
    bwrap: str, limits: SandboxLimits, *, filter_fd: int, program_fd: int, mark_fd: int, end_fd: int
) -> list[str]:
    executable, folders = _interpreter()
    words = [bwrap, "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--uid", "65534", "--gid", "65534", "--hostname", "box", "--clearenv"]
    words += ["--setenv", "PATH", "/usr/bin", "--setenv", "LC_ALL", "C.UTF-8", "--ro-bind", "/usr", "/usr"]
    for name in ("lib", "lib64", "lib32", "bin"):
        place = Path("/", name)
        if place.is_symlink():
            words += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            words += ["--ro-bind", str(place), str(place)]
    for kept in ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", *folders):
        words += ["--ro-bind-try", kept, kept]
    words += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    words += ["--ro-bind-data", str(program_fd), "/program.py"]
    words += ["--size", str(limits.folder_bytes), "--tmpfs", FOLDER, "--chdir", FOLDER, "--remount-ro", "/"]
    words += ["--seccomp", str(filter_fd)]
    rlimits = [
        ("RLIMIT_CPU", limits.cpu_s, limits.cpu_s + 1),
        ("RLIMIT_AS", limits.memory_bytes, limits.memory_bytes),
        ("RLIMIT_FSIZE", limits.folder_bytes, limits.folder_bytes),
        ("RLIMIT_NPROC", 0, 0),
        ("RLIMIT_NOFILE", limits.open_files, limits.open_files),
        ("RLIMIT_CORE", 0, 0),
    ]
    inside = _INSIDE.format(limits=rlimits, mark_fd=mark_fd, end_fd=end_fd, began=_BEGAN.decode())
    return [*words, executable, "-I", "-S", "-B", "-c", inside]


def _run(bwrap: str, text: str, limits: SandboxLimits) -> SandboxResult:
    started = time.monotonic()
    mark = secrets.token_hex(16).encode()
    with (
        _content(syscall_filter(platform.machine())) as filter_fd,
        _content(text.encode()) as program_fd,
        _content(mark) as mark_fd,
        _pipe() as (end_out, end_in),
    ):
        words = _arguments(
            bwrap, limits, filter_fd=filter_fd, program_fd=program_fd, mark_fd=mark_fd, end_fd=end_in.fileno()
        )
        with subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={},
            cwd="/",
            pass_fds=(filter_fd, program_fd, mark_fd, end_in.fileno()),
        ) as process:
            end_in.close()
            assert process.stdout is not None
            try:
                printed, stopped = _read(process.stdout, started + limits.wall_s, limits.output_bytes)
                if stopped is None:
                    try:
                        process.wait(timeout=max(0.0, started + limits.wall_s - time.monotonic()))
                    except subprocess.TimeoutExpired:
                        stopped = "timeout"
            finally:
                # bubblewrap's first process dies with it, and with that one every process inside
                process.kill()
        told = end_out.read(len(_BEGAN) + len(mark) + 1)
    if stopped is None and not told.startswith(_BEGAN):
        why = printed.strip().splitlines()[0][:200] if printed.strip() else f"it ended with status {process.returncode}"
        raise PreflightError(
            f"generated code is only run inside bubblewrap, which cannot work here: {why}; allow user "
            "namespaces (in a container: its seccomp or AppArmor profile; on Ubuntu: the sysctl "
            "kernel.apparmor_restrict_unprivileged_userns), or leave quality=humaneval out"
        )
    outcome = stopped or _outcome(process.returncode, told == _BEGAN + mark, printed)
    lines = [line for line in printed.splitlines() if line.strip()]
    return SandboxResult(
        outcome=outcome, last_line=lines[-1][:200] if lines else "", elapsed_s=time.monotonic() - started
    )


def _outcome(status: int, reached: bool, printed: str) -> SandboxOutcome:
    """As bubblewrap tells it: it passes on the program's status, and 128 + the signal that ended it."""
    if reached and status == 0:
        return "passed"
    if status == _MEMORY_STATUS or printed.rstrip().endswith("MemoryError"):
        return "memory"
    if status == 128 + signal.SIGXCPU:
        return "timeout"
    if status > 128 or status < 0:
        return "killed"
    return "failed" if status else "left_early"


def _read(stream: IO[bytes], deadline: float, cap: int) -> tuple[str, SandboxOutcome | None]:
    """What is printed until the end, the deadline or the cap, and which of the two stopped it."""
    found = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return found.decode(errors="replace"), "timeout"
            data = os.read(stream.fileno(), 65536)
            if not data:
                return found.decode(errors="replace"), None
            found += data
            if len(found) > cap:
                return found[:cap].decode(errors="replace"), "too_much_output"


@contextmanager
def _content(data: bytes) -> Iterator[int]:
    """A descriptor from which the data is read: in memory, so that no name of it is anywhere."""
    handle = os.memfd_create("servebench")
    try:
        os.write(handle, data)
        os.lseek(handle, 0, os.SEEK_SET)
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as reader, os.fdopen(into, "wb", buffering=0) as writer:
        yield reader, writer


def sandbox_errors() -> Sequence[str]:
    """What keeps code from being run here, as lines for the user; empty when it can be."""
    try:
        require_sandbox()
    except PreflightError as problem:
        return [str(problem)]
    return []
