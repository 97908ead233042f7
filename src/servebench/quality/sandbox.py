"""Run an untrusted Python program inside bubblewrap, without network or the user's files, for a limited time.

The sandbox consists of: an unprivileged user (root becomes `UNPRIVILEGED` first), separate namespaces (users, processes,
network, IPC, hostname), a read-only view of the interpreter, the system libraries and the kernel's files, one small folder in
memory to write to, an empty environment, no capabilities, a filter that allows only harmless system calls (no process,
thread, namespace, mount or socket), and limits on CPU time, memory, file size and open files. Wall time and output are
limited from outside.
"""

import functools
import os
import platform
import secrets
import selectors
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from servebench.quality import sandbox_probe
from servebench.quality.syscalls import ALLOWED, syscall_filter
from servebench.util.children import find_program
from servebench.util.errors import PreflightError

INSTALL = "install it ('apt-get install bubblewrap', 'dnf install bubblewrap')"
FOLDER = "/box"
"""The only writable folder inside."""
UNPRIVILEGED = 65534
"""The user and group that root becomes before the sandbox is made: `nobody`, who owns nothing."""
STAGE = "/mnt"
"""Where root shows the unprivileged user an interpreter that only root can reach, in a mount namespace of its own."""

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
os.close({mark_fd})
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

# root gives up all privileges before bubblewrap makes the user namespace: a process that the kernel takes for root may write
# kernel settings whatever its namespace. It bind-mounts what the unprivileged user cannot reach, then becomes that user
_DROP = """\
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
places, doing = {places!r}, "cannot make a mount namespace for " + ", ".join({places!r})
try:
    if places:
        call("unshare", 0x20000)
        call("mount", None, b"/", None, 0x44000, None)
        handles = [os.open(place, os.O_PATH) for place in places]
        call("mount", b"tmpfs", b"{stage}", b"tmpfs", 0, b"mode=755")
        for number, (place, handle) in enumerate(zip(places, handles)):
            target = "{stage}/%d" % number
            os.mkdir(target) if os.path.isdir("/proc/self/fd/%d" % handle) else os.close(os.open(target, os.O_CREAT))
            call("mount", b"/proc/self/fd/%d" % handle, target.encode(), None, 0x1000, None)
            os.close(handle)
    doing = "cannot become the user {user}"
    os.setgroups([])
    os.setresgid({user}, {user}, {user})
    os.setresuid({user}, {user}, {user})
    doing = "cannot run " + {command!r}[0]
    os.execv({command!r}[0], {command!r})
except OSError as error:
    os.write(2, ("root privileges cannot be dropped: " + doing + ": " + error.strerror).encode())
    os._exit(1)
"""


def run_program(text: str, limits: SandboxLimits = SandboxLimits()) -> SandboxResult:
    """Run a Python program in a fresh sandbox; nothing of it is left afterwards, whatever it did.

    Raises PreflightError, without running the program, where no sandbox works.
    """
    require_sandbox()
    return _run(_bwrap(), text, limits)


@functools.cache
def require_sandbox() -> None:
    """Try to break out, once per process. Raises PreflightError, with what to do, if there is no sandbox or it leaks."""
    result = _run(_bwrap(), _probe(), SandboxLimits())
    if result.outcome != "passed":
        raise PreflightError(
            f"cannot run generated code: the bubblewrap sandbox leaks on this machine ({result.outcome}: "
            f"{result.last_line or 'no output'}); allow user namespaces, or omit quality=humaneval"
        )


def _probe() -> str:
    """Return a program that fails unless each of its attempts to get out fails. One that succeeds does no harm."""
    program = Path(sandbox_probe.__file__).read_text(encoding="utf-8")
    needed = [FOLDER, "/usr", "/lib", *_interpreter()[1]]
    private = [str(place) for place in {Path.home(), Path.cwd()} if place != Path("/")]
    allowed = sorted(ALLOWED[platform.machine()].values())
    calls = ("check_identity()", "check_processes()", f"check_files({needed}, {private})", f"check_kernel({allowed})")
    return "\n".join((program, *calls))


def _bwrap() -> str:
    path = find_program("bwrap")
    if path is None:
        raise PreflightError(f"generated code only runs inside bubblewrap, and bwrap is not installed; {INSTALL}")
    if platform.machine() not in ALLOWED:
        raise PreflightError(
            f"cannot run generated code on {platform.machine()}: the sandbox knows the system calls of "
            f"{' and '.join(ALLOWED)} only; omit quality=humaneval"
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


def _is_root() -> bool:
    return 0 in (os.getuid(), os.geteuid())


def _root_only(place: str) -> bool:
    """Return whether other users cannot read a place, or not reach it."""
    path = Path(place)
    return path.stat().st_mode & 0o5 != 0o5 or any(not parent.stat().st_mode & 0o1 for parent in path.parents)


def _arguments(
    bwrap: str, limits: SandboxLimits, *, filter_fd: int, program_fd: int, mark_fd: int, end_fd: int
) -> list[str]:
    executable, folders = _interpreter()
    places = [bwrap, *folders]
    hidden = _is_root() and any(_root_only(place) for place in places)
    staged = {place: f"{STAGE}/{number}" for number, place in enumerate(places)} if hidden else {}
    words = [staged.get(bwrap, bwrap), "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session"]
    words += ["--cap-drop", "ALL", "--uid", "65534", "--gid", "65534", "--hostname", "box", "--clearenv"]
    words += ["--setenv", "PATH", "/usr/bin", "--setenv", "LC_ALL", "C.UTF-8", "--ro-bind", "/usr", "/usr"]
    for name in ("lib", "lib64", "lib32", "bin"):
        place = Path("/", name)
        if place.is_symlink():
            words += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            words += ["--ro-bind", str(place), str(place)]
    for kept in ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", *folders):
        words += ["--ro-bind-try", staged.get(kept, kept), kept]
    words += ["--proc", "/proc", "--remount-ro", "/proc", "--tmpfs", "/dev"]
    for device in ("null", "zero", "random", "urandom"):
        words += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    words += ["--remount-ro", "/dev"]
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
    words += [executable, "-I", "-S", "-B", "-c", inside]
    if not _is_root():
        return words
    drop = _DROP.format(places=list(staged), stage=STAGE, user=UNPRIVILEGED, command=words)
    return [sys.executable, "-I", "-S", "-B", "-c", drop]


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
            f"kernel.apparmor_restrict_unprivileged_userns), {'run servebench as a normal user, ' if _is_root() else ''}"
            "or omit quality=humaneval"
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
