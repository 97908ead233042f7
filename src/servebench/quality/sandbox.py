"""Run an untrusted Python program inside bubblewrap, without network or the user's files, for a limited time.

The sandbox consists of: separate namespaces (users, processes, network, IPC, hostname), a read-only view of the interpreter
and the system libraries, one small folder in memory to write to, an empty environment, no capabilities, a system call
filter (no further process or thread, no namespace, no shared memory outside the limits), and limits on CPU time, memory,
file size and open files. Wall time and output are limited from outside.
"""

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
"""The only writable folder inside."""

SandboxOutcome = Literal["passed", "failed", "left_early", "timeout", "memory", "too_much_output", "killed"]
"""passed: the program ran to its end. failed: it raised an exception. left_early: it exited before its end. timeout: too
much CPU or wall time. memory: it exceeded its memory limit. killed: by another signal."""


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """The limits of a program. `folder_bytes` is the size of the writable folder, and of any one file."""

    wall_s: float = 20.0
    cpu_s: int = 5
    memory_bytes: int = 256 * 2**20
    folder_bytes: int = 16 * 2**20
    output_bytes: int = 64 * 2**10
    open_files: int = 64


@dataclass(frozen=True, kw_only=True)
class SandboxResult:
    """How a program ended, and the last line that it printed (that of the exception, if there was one)."""

    outcome: SandboxOutcome
    last_line: str
    elapsed_s: float


# The limits are set inside, after bubblewrap has made its processes: they apply to the program alone. A pipe reports that it
# began and reached its end, because a program that exits early may also return status 0, and output may be anything. A
# program written to cheat its own test may find the mark, but cannot use it to escape.
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

# system calls that no allowed program needs, by machine: creating processes and namespaces, memory that RLIMIT_AS does not
# count, and those through which kernel bugs have been exploited most often
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
    """Return a seccomp program (classic BPF, a sequence of `struct sock_filter`) that rejects the calls in `_FORBIDDEN`.

    clone3 fails as not implemented, so that libraries fall back to clone, which is denied. Call numbers of another
    architecture, including x32, end the program. Raises KeyError for a machine without a table.
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
    """Run a Python program in a fresh sandbox; nothing of it is left afterwards, whatever it did.

    Raises PreflightError, without running the program, where no sandbox works.
    """
    require_sandbox()
    return _run(_bwrap(), text, limits)


@functools.cache
def require_sandbox() -> None:
    """Try to break out, once per process. Raises PreflightError, with what to do, if there is no sandbox or it leaks."""
    result = _run(_bwrap(), _PROBE.format(home=str(Path.home())), SandboxLimits())
    if result.outcome != "passed":
        raise PreflightError(
            f"cannot run generated code: the bubblewrap sandbox leaks on this machine ({result.outcome}: "
            f"{result.last_line or 'no output'}); allow user namespaces, or omit quality=humaneval"
        )


# each line must fail or be empty inside
_PROBE = """\
import os, socket
assert os.getpid() < 100 and set(os.environ) <= {{"PATH", "LC_ALL", "PWD", "LC_CTYPE"}}, "the environment is visible"
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
assert not os.path.exists("/home") and not os.path.exists("/root/.ssh"), "the user's files are visible"
try:
    socket.create_connection(("1.1.1.1", 53), timeout=0.2)
except OSError as error:
    assert error.errno == 101, "the network is not isolated: " + str(error)
else:
    raise AssertionError("the network is reachable")
"""


def _bwrap() -> str:
    path = shutil.which("bwrap")
    if path is None:
        raise PreflightError(f"generated code only runs inside bubblewrap, and bwrap is not installed; {INSTALL}")
    if platform.machine() not in _FORBIDDEN:
        raise PreflightError(
            f"cannot run generated code on {platform.machine()}: the sandbox knows the system calls of "
            f"{' and '.join(_FORBIDDEN)} only; omit quality=humaneval"
        )
    return path


def _interpreter() -> tuple[str, list[str]]:
    """Return the interpreter below any virtual environment, and the paths that it needs besides /usr and /lib.

    Its whole prefix may be the user's home, so that is not among them.
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
                # bubblewrap's first process dies with it, and so does every process inside
                process.kill()
        report = end_out.read(len(_BEGAN) + len(mark) + 1)
    if stopped is None and not report.startswith(_BEGAN):
        why = printed.strip().splitlines()[0][:200] if printed.strip() else f"it ended with status {process.returncode}"
        raise PreflightError(
            f"generated code only runs inside bubblewrap, which fails here: {why}; allow user namespaces "
            "(in a container: its seccomp or AppArmor profile; on Ubuntu: the sysctl "
            "kernel.apparmor_restrict_unprivileged_userns), or omit quality=humaneval"
        )
    outcome = stopped or _outcome(process.returncode, report == _BEGAN + mark, printed)
    lines = [line for line in printed.splitlines() if line.strip()]
    return SandboxResult(
        outcome=outcome, last_line=lines[-1][:200] if lines else "", elapsed_s=time.monotonic() - started
    )


def _outcome(status: int, reached: bool, printed: str) -> SandboxOutcome:
    """Return the outcome for bubblewrap's exit status: the program's, or 128 + the signal that ended it."""
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
    """Return the output until its end, the deadline or the cap, and which of the two stopped it."""
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return output.decode(errors="replace"), "timeout"
            data = os.read(stream.fileno(), 65536)
            if not data:
                return output.decode(errors="replace"), None
            output += data
            if len(output) > cap:
                return output[:cap].decode(errors="replace"), "too_much_output"


@contextmanager
def _content(data: bytes) -> Iterator[int]:
    """Yield a descriptor to read the data from: in memory, so that it has no path."""
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
    """Return why code cannot run here, as lines for the user; empty if it can."""
    try:
        require_sandbox()
    except PreflightError as problem:
        return [str(problem)]
    return []
