"""A program in a sandbox: its limits, its start, and how it ended."""

import json
import os
import platform
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Literal, NoReturn, Self

from servebench.plugin import PreflightError
from servebench_graders import sandbox_entry
from servebench_graders.syscalls import syscall_filter

SandboxOutcome = Literal["passed", "failed", "left_early", "timeout", "memory", "too_much_output", "killed"]
"""passed: the program ran to its end. failed: it raised an exception. left_early: it exited before its end. timeout: too
much CPU or wall time. memory: it exceeded its memory limit. killed: by another signal."""


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """The limits of a program. `folder_bytes` is the size of the writable folder, and of any one file; `files` is how many files,
    folders and links it may hold."""

    wall_s: float = 20.0
    cpu_s: int = 5
    memory_bytes: int = 256 * 2**20
    folder_bytes: int = 16 * 2**20
    files: int = 1024
    output_bytes: int = 64 * 2**10
    open_files: int = 64
    signals: int = 64


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


@dataclass(frozen=True, kw_only=True)
class Descriptors:
    """What is read and written inside: the filter, the program, the mark of its end, and where that is written to."""

    filter: int
    program: int
    mark: int
    end: int

    def code(self, limits: list[tuple[str, int, int]]) -> str:
        """Return the code that the interpreter starts with inside: it runs the program with these limits."""
        return _INSIDE.format(limits=limits, mark_fd=self.mark, end_fd=self.end, began=_BEGAN.decode())


@dataclass(frozen=True, kw_only=True)
class Start:
    """How programs are started: the words and variables before the entry's own, and the entry's settings for descriptors."""

    words: list[str]
    environment: Mapping[str, str]
    settings: Callable[[Descriptors], Mapping[str, Any]]
    as_root: bool


class Program:
    """A Python program in a sandbox, from its start on; it is killed when the context ends. It takes over the files `inherited`.

    Raises OSError.
    """

    def __init__(self, text: str, limits: SandboxLimits, start: Start, *inherited: IO[bytes]) -> None:
        self._limits, self._start, self._started = limits, start, time.monotonic()
        self._mark = secrets.token_hex(16).encode()
        self._reader, writer = pipe()
        with ExitStack() as stack, writer:
            content = (syscall_filter(platform.machine()), text.encode(), self._mark)
            first, program, mark = (stack.enter_context(_content(data)) for data in content)
            inside = Descriptors(filter=first, program=program, mark=mark, end=writer.fileno())
            entry = stack.enter_context(_content(json.dumps(start.settings(inside)).encode()))
            self.process = subprocess.Popen(
                [*start.words, sys.executable, "-I", "-S", "-B", sandbox_entry.__file__, str(entry)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=start.environment,
                cwd="/",
                pass_fds=(first, program, mark, entry, writer.fileno(), *(one.fileno() for one in inherited)),
            )
        for one in inherited:
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        # bubblewrap's first process dies with it, and so does every process inside
        self.process.kill()
        self.process.__exit__(kind, error, where)
        self._reader.close()

    def result(self) -> SandboxResult:
        """Return how the program ended, once it has. Raises PreflightError if it never began."""
        assert self.process.stdout is not None
        deadline = self._started + self._limits.wall_s
        printed, stopped = _read(self.process.stdout, deadline, self._limits.output_bytes)
        if stopped is None:
            try:
                self.process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                stopped = "timeout"
        self.process.kill()
        status = self.process.wait()
        report = self._reader.read(len(_BEGAN) + len(self._mark) + 1)
        if stopped is None and not report.startswith(_BEGAN):
            self._explain(printed)
        outcome = stopped or _outcome(status, report == _BEGAN + self._mark, printed)
        lines = [line for line in printed.splitlines() if line.strip()]
        elapsed_s = time.monotonic() - self._started
        return SandboxResult(outcome=outcome, last_line=lines[-1][:200] if lines else "", elapsed_s=elapsed_s)

    def _explain(self, printed: str) -> NoReturn:
        why = (
            printed.strip().splitlines()[0][:200]
            if printed.strip()
            else f"it ended with status {self.process.returncode}"
        )
        raise PreflightError(
            f"generated code only runs inside bubblewrap, which fails here: {why}; allow user namespaces "
            "(in a container: its seccomp or AppArmor profile; on Ubuntu: the sysctl "
            f"kernel.apparmor_restrict_unprivileged_userns), "
            f"{'run servebench as a normal user, ' if self._start.as_root else ''}or omit quality=humaneval"
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


def pipe() -> tuple[IO[bytes], IO[bytes]]:
    """Return the two ends of a pipe: to read from, and to write to at once."""
    out, into = os.pipe()
    return os.fdopen(out, "rb"), os.fdopen(into, "wb", buffering=0)
