"""Run an untrusted Python program inside bubblewrap, without network or the user's files, for a limited time.

The sandbox consists of: an unprivileged user (root becomes `UNPRIVILEGED` first), separate namespaces (users, processes,
network, IPC, hostname), a read-only view of the interpreter, the system libraries and the kernel's files, one small folder in
memory for few files, an empty environment, no capabilities, a filter that allows only harmless system calls (no process,
thread, namespace, mount, socket, and none that lets the kernel keep memory for the program), and limits on CPU time, memory,
file size, open files and signals. Where systemd gives one, a memory cgroup bounds all of it. Wall time and output are limited
from outside.
"""

import functools
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from servebench.plugin import PreflightError, find_program
from servebench_graders import sandbox_calls, sandbox_probe
from servebench_graders.sandbox_entry import STAGE
from servebench_graders.sandbox_program import Descriptors, Program, SandboxLimits, SandboxResult, Start, pipe
from servebench_graders.syscalls import ALLOWED

LIMITS = SandboxLimits()
INSTALL = "install it ('apt-get install bubblewrap', 'dnf install bubblewrap')"
FOLDER = "/box"
"""The only writable folder inside."""
UNPRIVILEGED = 65534
"""The user and group that root becomes before the sandbox is made: `nobody`, who owns nothing."""
GROUP_S = 10.0
"""How long systemd may take to make a memory cgroup."""
OVERHEAD_BYTES = 64 << 20
"""What bubblewrap and the kernel may take beside a program's own memory."""


def run_program(text: str, limits: SandboxLimits = LIMITS) -> SandboxResult:
    """Run a Python program in a fresh sandbox; nothing of it is left afterwards, whatever it did.

    Raises PreflightError, without running the program, where no sandbox works.
    """
    require_sandbox()
    with Program(text, limits, _start(limits)) as program:
        return program.result()


def run_tests(code: str, name: str, tests: str, limits: SandboxLimits = LIMITS) -> SandboxResult:
    """Run `tests`, in which `name` is a function that `code` defines in a sandbox of its own, and return how they ended: as the
    code did if it ended before them. Raises PreflightError where no sandbox works."""
    require_sandbox()
    shared = Path(sandbox_calls.__file__).read_text(encoding="utf-8")
    start, (calls_out, calls_in), (answers_out, answers_in) = _start(limits), pipe(), pipe()
    with calls_out, calls_in, answers_out, answers_in:
        ends = f"{calls_out.fileno()}, {answers_in.fileno()}", f"{calls_in.fileno()}, {answers_out.fileno()}"
        serving = f"exec({code!r}, names := {{'__name__': 'program'}})\nserve(names[{name!r}], {ends[0]})"
        calling = f"exec({tests!r}, {{'__name__': 'tests', {name!r}: remote({ends[1]})}})"
        with (
            Program(f"{shared}\n{serving}", limits, start, calls_out, answers_in) as coded,
            Program(f"{shared}\n{calling}", limits, start, calls_in, answers_out) as tested,
            ThreadPoolExecutor(1) as beside,
        ):
            answered = beside.submit(coded.result)
            result = tested.result()
            if tested.process.returncode == sandbox_calls.GONE:
                result = answered.result()
                # it closed its end, which is no end of the tests
                return replace(result, outcome="left_early") if result.outcome == "passed" else result
            coded.process.kill()
            return result


@functools.cache
def require_sandbox() -> None:
    """Try to break out, once per process. Raises PreflightError, with what to do, if there is no sandbox or it leaks."""
    start = _start(LIMITS)
    with Program(_probe(), LIMITS, start) as program:
        result = program.result()
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
    calls = ["check_identity()", "check_processes()", f"check_memory({FOLDER!r}, {LIMITS.files})"]
    calls += [f"check_files({needed}, {private})", f"check_kernel({allowed})"]
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


def _arguments(words: list[str], staged: Mapping[str, str], folders: Sequence[str], program_fd: int) -> list[str]:
    """Return the words for bubblewrap that say what a program sees. `FOLDER` alone stands for those that make it."""
    words = [*words, "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session"]
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
    words += ["--remount-ro", "/dev", "--ro-bind-data", str(program_fd), "/program.py"]
    return [*words, FOLDER, "--chdir", FOLDER, "--remount-ro", "/"]


def _start(limits: SandboxLimits) -> Start:
    """Return how programs start here. Raises PreflightError where bubblewrap is missing."""
    bwrap, (executable, folders), root = _bwrap(), _interpreter(), _is_root()
    places = [bwrap, *folders]
    hidden = root and any(_root_only(place) for place in places)
    staged = {place: f"{STAGE}/{number}" for number, place in enumerate(places)} if hidden else {}
    rlimits = [
        ("RLIMIT_CPU", limits.cpu_s, limits.cpu_s + 1),
        ("RLIMIT_AS", limits.memory_bytes, limits.memory_bytes),
        ("RLIMIT_FSIZE", limits.folder_bytes, limits.folder_bytes),
        ("RLIMIT_NPROC", 0, 0),
        ("RLIMIT_NOFILE", limits.open_files, limits.open_files),
        ("RLIMIT_SIGPENDING", limits.signals, limits.signals),
        ("RLIMIT_CORE", 0, 0),
    ]

    def settings(inside: Descriptors) -> dict[str, Any]:
        words = _arguments([staged.get(bwrap, bwrap)], staged, folders, inside.program)
        words += ["--seccomp", str(inside.filter), executable, "-I", "-S", "-B", "-c", inside.code(rlimits)]
        folder = {"folder": FOLDER, "bytes": limits.folder_bytes, "files": limits.files}
        return {"command": words, **folder, "places": list(staged), "user": UNPRIVILEGED if root else None}

    group = _memory_group(limits.memory_bytes + limits.folder_bytes + OVERHEAD_BYTES)
    return Start(words=group, environment=_bus() if group else {}, settings=settings, as_root=root)


@functools.cache
def _memory_group(limit: int) -> list[str]:
    """Return the words that start a program in a memory cgroup of its own, which counts what the kernel keeps for it, too. Empty
    where no systemd makes one: other cgroups are not ours to change."""
    words = ["systemd-run", *([] if _is_root() else ["--user"]), "--scope", "--quiet", "--collect"]
    words += ["-p", f"MemoryMax={limit}", "-p", "MemorySwapMax=0", "--"]
    program = find_program(words[0])
    if program is None:
        return []
    words[0] = program
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [*words, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GROUP_S,
            check=True,
            env=_bus(),
            cwd="/",
        )
        return words
    return []


def _bus() -> dict[str, str]:
    """Return the variables by which systemd-run finds the user's systemd."""
    names = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "PATH")
    return {name: os.environ[name] for name in names if name in os.environ}


def sandbox_errors() -> Sequence[str]:
    """Return why code cannot run here, as lines for the user; empty if it can."""
    try:
        require_sandbox()
    except PreflightError as problem:
        return [str(problem)]
    return []
