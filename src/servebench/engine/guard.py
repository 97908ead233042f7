"""The guard: a small process between servebench and an engine, so that the engine never outlives servebench.

    python -S -E guard.py CONTROL_FD REPORT_FD LOG STOP_TIMEOUT_S -- COMMAND...

Standard library only, and run by path, so that it starts at once and weighs little. It leads a session of its own (a
terminal's Ctrl-C does not reach the engine), makes itself the reaper of orphaned descendants, starts the command in a
process group with output to LOG, and reports `pid N`, then `exit CODE` or `signal NUMBER`. CONTROL_FD is the read end of a pipe
whose write end only servebench holds: a byte `t` there, or its end (servebench is gone, even by kill -9), makes the
guard stop the engine: SIGTERM to the group, a deadline, SIGKILL to every descendant.
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


def process_control(option, argument):
    """prctl, where the system has it (Linux)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def descendants(root):
    """The pids below `root`, from /proc; nothing where there is none."""
    children = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
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


def send(pid, number, group=False):
    """A signal to a process or group that may be gone."""
    try:
        (os.killpg if group else os.kill)(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def reap(engine):
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


def kill_all():
    """SIGKILL every descendant until none is left; those it could not end."""
    deadline = time.monotonic() + KILL_ROUNDS_S
    while time.monotonic() < deadline:
        left = descendants(os.getpid())
        if not left:
            return []
        for pid in left:
            send(pid, signal.SIGKILL)
        reap(0)
        time.sleep(POLL_S)
    return descendants(os.getpid())


def start(command, log):
    """The engine, in a group of its own, with its output in the log."""
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 256)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, ("cannot start %s: %s\n" % (command[0], error.strerror)).encode())
        os._exit(127)


def say(report, text):
    """A line to servebench, if it is still there."""
    try:
        os.write(report, (text + "\n").encode())
    except OSError:
        pass


def told_to_stop(control, timeout_s):
    """Whether an order to stop came, or the one who gives orders went, within this time."""
    ready, _, _ = select.select([control], [], [], timeout_s)
    return bool(ready)


def verdict(status):
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        return "signal %d" % os.WTERMSIG(status)
    return "exit %d" % os.WEXITSTATUS(status)


def main(arguments):
    """Start, wait, stop, prove."""
    control, report, log, stop_timeout_s = int(arguments[0]), int(arguments[1]), arguments[2], float(arguments[3])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    process_control(PR_SET_CHILD_SUBREAPER, 1)
    engine = start(arguments[5:], log)
    try:
        os.setpgid(engine, engine)
    except OSError:
        pass
    say(report, "pid %d" % engine)
    status = None
    while status is None and not told_to_stop(control, POLL_S):
        status = reap(engine)
    if status is None:
        send(engine, signal.SIGTERM, group=True)
        deadline = time.monotonic() + stop_timeout_s
        while time.monotonic() < deadline and (status is None or descendants(os.getpid())):
            status = reap(engine) if status is None else (reap(0), status)[1]
            time.sleep(POLL_S)
    killed = descendants(os.getpid())
    left = kill_all()
    if status is None:
        status = signal.SIGKILL
    say(report, "ended %s killed %s left %s" % (verdict(status), ",".join(map(str, killed)) or "-", ",".join(map(str, left)) or "-"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
