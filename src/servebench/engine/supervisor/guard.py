"""The guard: a small process between servebench and an engine, so that the engine never outlives servebench.

    python -S -E guard.py CONTROL_FD REPORT_FD LOG STOP_TIMEOUT_S [FINISH...] -- COMMAND...

Standard library only, and run by path, so that it starts at once and weighs little. It is started as the leader of a
session of its own (a terminal's Ctrl-C does not reach the engine), makes itself the reaper of orphaned descendants,
starts the command in a process group with output to LOG, and reports `pid N`, then `ended exit CODE killed PIDS left
PIDS` (or `ended signal NUMBER ...`). CONTROL_FD is the read end of a pipe whose write end only servebench holds: a byte
there, or its end, or the end of servebench's process (even by kill -9), makes the guard stop the engine: SIGTERM to the
group, a deadline, SIGKILL to every descendant. When the engine ends by itself, what it leaves behind is killed too. FINISH,
if given, is a command that is run when all that is done: it removes what is no descendant, such as a container. The
guard sleeps otherwise: it takes no CPU while load runs. It ends with the engine's exit code (128 + N for a signal).
"""

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""From linux/prctl.h: be signalled when the parent dies; inherit orphaned descendants."""

POLL_S = 0.02
KILL_ROUNDS_S = 5.0
FINISH_S = 30.0
EXEC_FAILED = 127


def process_control(option: int, argument: int) -> None:
    """prctl, where the system has it (Linux)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)
    except (OSError, AttributeError):
        return


def descendants(root: int) -> list[int]:
    """The living pids below `root`, from /proc; nothing where there is none."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - pathlib would double the weight of the guard
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - see above
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                children.setdefault(int(fields[1]), []).append(int(name))
    found, waiting = [], [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found


def send(pid: int, number: int, *, group: bool = False) -> None:
    """A signal to a process or group that may be gone."""
    try:
        (os.killpg if group else os.kill)(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def reap(engine: int) -> int | None:
    """Collect the dead; the engine's wait status once it is among them."""
    status = None
    while True:
        try:
            pid, code = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == engine:
            status = code


def terminate(engine: int, stop_timeout_s: float) -> int | None:
    """SIGTERM to the engine's group, then wait for all of it; the engine's wait status if it ended in time."""
    send(engine, signal.SIGTERM, group=True)
    deadline = time.monotonic() + stop_timeout_s
    status = None
    while time.monotonic() < deadline:
        if status is None:
            status = reap(engine)
            if status is not None:
                # those in groups of their own were not told yet; while the engine lived that was its task
                for pid in descendants(os.getpid()):
                    if group_of(pid) != engine:
                        send(pid, signal.SIGTERM)
        else:
            reap(0)
        if status is not None and not descendants(os.getpid()):
            break
        time.sleep(POLL_S)
    return status


def group_of(pid: int) -> int:
    """The process group of a process that may be gone (then 0)."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def kill_all(engine: int) -> tuple[set[int], list[int]]:
    """SIGKILL every descendant until none is left: those that it took, and those that it could not end."""
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_ROUNDS_S
    while left := descendants(os.getpid()):
        if time.monotonic() > deadline:
            return killed, left
        for pid in left:
            send(pid, signal.SIGKILL)
        killed.update(left)
        time.sleep(POLL_S)
        reap(0)
    # without /proc the group is all that can be reached
    send(engine, signal.SIGKILL, group=True)
    return killed, []


def start(command: list[str], log: str) -> int:
    """The engine, in a group of its own, with its output in the log. Its pid, which is its group's too."""
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execvp(command[0], command)  # noqa: S606 - a shell is what must not stand between
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(EXEC_FAILED)


def say(report: int, text: str) -> None:
    """A line to servebench, if it is still there."""
    try:
        os.write(report, (text + "\n").encode())
    except OSError:
        return


def orders(control: int) -> list[int]:
    """Descriptors that become readable when the engine is to be stopped. A process that servebench forked may hold the
    pipe open after servebench is gone, so its process is watched too where the system can (Linux 5.3)."""
    try:
        return [control, os.pidfd_open(os.getppid())]
    except (OSError, AttributeError):
        return [control]


def woken_by_children() -> int:
    """A descriptor that becomes readable when a child ends."""
    read, write = os.pipe()
    for descriptor in (read, write):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def watch(engine: int, stopping: list[int], wake: int) -> int | None:
    """Sleep until the engine ends (its wait status) or is to be stopped (None)."""
    sleeper = select.poll()
    for descriptor in (*stopping, wake):
        sleeper.register(descriptor, select.POLLIN)
    while True:
        status = reap(engine)
        if status is not None:
            return status
        ready = [descriptor for descriptor, _ in sleeper.poll()]
        if wake in ready:
            os.read(wake, 4096)
        if any(descriptor in ready for descriptor in stopping):
            return reap(engine)


def main(arguments: list[str]) -> int:
    """Start, wait, stop, prove."""
    control, report, log, stop_timeout_s = int(arguments[0]), int(arguments[1]), arguments[2], float(arguments[3])
    for descriptor in (control, report):
        os.set_inheritable(descriptor, False)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    process_control(PR_SET_CHILD_SUBREAPER, 1)
    stopping, wake = orders(control), woken_by_children()
    border = arguments.index("--")
    finish, command = arguments[4:border], arguments[border + 1 :]
    engine = start(command, log)
    try:  # noqa: SIM105 - importing contextlib would lengthen the start
        os.setpgid(engine, engine)
    except OSError:
        pass  # it has done so itself, and runs its command already
    say(report, f"pid {engine}")
    status = watch(engine, stopping, wake)
    if status is None:
        status = terminate(engine, stop_timeout_s)
    killed, left = kill_all(engine)
    if finish:
        run_finish(finish)
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    words = f"signal {-code}" if code < 0 else f"exit {code}"
    say(report, f"ended {words} killed {_listed(killed)} left {_listed(left)}")
    return 128 - code if code < 0 else code


def run_finish(finish: list[str]) -> None:
    """Run the finishing command, for so long as it may take. What it says does not matter: what it removes may be gone."""
    pid = start(finish, os.devnull)
    deadline = time.monotonic() + FINISH_S
    while reap(pid) is None:
        if time.monotonic() > deadline:
            kill_all(pid)
            return
        time.sleep(POLL_S)


def _listed(pids: "set[int] | list[int]") -> str:
    return ",".join(map(str, sorted(pids))) or "-"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
