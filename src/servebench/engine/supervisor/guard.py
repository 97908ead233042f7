"""The guard: a small process between servebench and an engine, so that the engine never outlives servebench.

    python -S -E -P guard.py CONTROL_FD REPORT_FD LOG STOP_TIMEOUT_S [FINISH...] -- COMMAND...

It uses the standard library only and is run by path, so that it starts quickly and stays small. It leads a session of its
own (a terminal's Ctrl-C does not reach the engine), adopts orphaned descendants, starts COMMAND in a process group with
its output in LOG, and reports `pid N`, then `ended exit CODE killed PIDS left PIDS` (or `ended signal NUMBER ...`).

CONTROL_FD is the read end of a pipe whose write end only servebench holds. A byte on it, its end, or the end of the
servebench process (even by kill -9) makes the guard stop the engine: SIGTERM to the group, a deadline, then SIGKILL to every
descendant. The byte UNREADY says that the engine has served nobody yet, which makes the deadline short. If the engine ends
by itself, its remaining descendants are killed too. FINISH is a command to run afterwards; it removes what is not a
descendant, such as a container. The guard sleeps otherwise and takes no CPU during a measurement. It exits with the engine's
exit code (128 + N for signal N).
"""

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""From linux/prctl.h: signal this process when its parent dies; adopt orphaned descendants."""

POLL_S = 0.02
KILL_ROUNDS_S = 5.0
FINISH_S = 30.0
UNREADY, UNREADY_STOP_S = b"u", 5.0
"""An engine that loads has no request to finish, and may not hear a signal before it has loaded (vLLM 0.32)."""
EXEC_FAILED = 127


def process_control(option: int, argument: int) -> None:
    """Call prctl, where the system has it (Linux)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)
    except (OSError, AttributeError):
        return


def descendants(root: int) -> list[int]:
    """Return the pids of the living descendants of `root`, from /proc; none without /proc."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - importing pathlib would double the size of the guard
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
    found, pending = [], [root]
    while pending:
        for child in children.get(pending.pop(), []):
            found.append(child)
            pending.append(child)
    return found


def send_signal(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to a process or group that may be gone."""
    try:
        (os.killpg if group else os.kill)(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def reap(engine: int) -> int | None:
    """Reap all ended children; return the engine's wait status if it was among them."""
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
    """Send SIGTERM to the engine's group and wait for all descendants; return the engine's wait status if it ended in time."""
    send_signal(engine, signal.SIGTERM, group=True)
    deadline = time.monotonic() + stop_timeout_s
    status = None
    while time.monotonic() < deadline:
        if status is None:
            status = reap(engine)
            if status is not None:
                # stopping processes in groups of their own was the engine's task while it lived
                for pid in descendants(os.getpid()):
                    if group_of(pid) != engine:
                        send_signal(pid, signal.SIGTERM)
        else:
            reap(0)
        if status is not None and not descendants(os.getpid()):
            break
        time.sleep(POLL_S)
    return status


def group_of(pid: int) -> int:
    """Return the process group of a process; 0 if it is gone."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def kill_all(engine: int) -> tuple[set[int], list[int]]:
    """Send SIGKILL until no descendant is left; return the pids that were killed and the pids that survived."""
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_ROUNDS_S
    while left := descendants(os.getpid()):
        if time.monotonic() > deadline:
            return killed, left
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        killed.update(left)
        time.sleep(POLL_S)
        reap(0)
    # without /proc only the group can be reached
    send_signal(engine, signal.SIGKILL, group=True)
    return killed, []


def start(command: list[str], log: str) -> int:
    """Start a command in a process group of its own, with its output in the log; return its pid, which is also its group."""
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
        os.execvp(command[0], command)  # noqa: S606 - there must be no shell in between
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(EXEC_FAILED)


def send_report(report: int, text: str) -> None:
    """Write a line to servebench, if it still exists."""
    try:
        os.write(report, (text + "\n").encode())
    except OSError:
        return


def stop_descriptors(control: int) -> list[int]:
    """Return the descriptors that become readable when the engine must be stopped.

    A process forked by servebench may hold the pipe open after servebench is gone, so the servebench process itself is
    watched too where the system can do that (Linux 5.3).
    """
    try:
        return [control, os.pidfd_open(os.getppid())]
    except (OSError, AttributeError):
        return [control]


def is_unready(control: int) -> bool:
    """Return whether servebench has said that the engine has served nobody."""
    return bool(select.select([control], [], [], 0)[0]) and os.read(control, 1) == UNREADY


def child_wakeup_descriptor() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    read, write = os.pipe()
    for descriptor in (read, write):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def watch(engine: int, stop: list[int], wakeup: int) -> int | None:
    """Sleep until the engine ends (return its wait status) or must be stopped (return None)."""
    poll = select.poll()
    for descriptor in (*stop, wakeup):
        poll.register(descriptor, select.POLLIN)
    while True:
        status = reap(engine)
        if status is not None:
            return status
        ready = [descriptor for descriptor, _ in poll.poll()]
        if wakeup in ready:
            os.read(wakeup, 4096)
        if any(descriptor in ready for descriptor in stop):
            return reap(engine)


def main(arguments: list[str]) -> int:
    """Start the engine, wait for its end or for a stop, and report that nothing is left."""
    control, report, log, stop_timeout_s = int(arguments[0]), int(arguments[1]), arguments[2], float(arguments[3])
    for descriptor in (control, report):
        os.set_inheritable(descriptor, False)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    process_control(PR_SET_CHILD_SUBREAPER, 1)
    # a guard that somebody has stopped goes on when servebench is gone
    process_control(PR_SET_PDEATHSIG, signal.SIGCONT)
    stop, wakeup = stop_descriptors(control), child_wakeup_descriptor()
    separator = arguments.index("--")
    finish, command = arguments[4:separator], arguments[separator + 1 :]
    engine = start(command, log)
    try:  # noqa: SIM105 - importing contextlib would slow the start
        os.setpgid(engine, engine)
    except OSError:
        pass  # the child has done so itself and already runs the command
    send_report(report, f"pid {engine}")
    status = watch(engine, stop, wakeup)
    if status is None:
        status = terminate(engine, min(stop_timeout_s, UNREADY_STOP_S) if is_unready(control) else stop_timeout_s)
    killed, left = kill_all(engine)
    if finish:
        run_finish(finish)
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    ending = f"signal {-code}" if code < 0 else f"exit {code}"
    send_report(report, f"ended {ending} killed {_format_pids(killed)} left {_format_pids(left)}")
    return 128 - code if code < 0 else code


def run_finish(finish: list[str]) -> None:
    """Run the finishing command within its time limit. Its result is ignored: what it removes may already be gone."""
    pid = start(finish, os.devnull)
    deadline = time.monotonic() + FINISH_S
    while reap(pid) is None:
        if time.monotonic() > deadline:
            kill_all(pid)
            return
        time.sleep(POLL_S)


def _format_pids(pids: "set[int] | list[int]") -> str:
    return ",".join(map(str, sorted(pids))) or "-"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
