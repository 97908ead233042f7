"""Attempts to get out of the sandbox, each of which must fail. This file is the program that `sandbox` runs inside it.

What succeeds does no harm: files are opened and not written, calls get arguments that no kernel accepts.
"""

import _thread
import ctypes
import fcntl
import os
import resource
import socket
from collections.abc import Callable, Sequence
from typing import Any

ENOSYS = 38
DENIED_CALLS = {
    "ptrace": (101, 117), "mount": (165, 40), "unshare": (272, 97), "setns": (308, 268), "add_key": (248, 217),
    "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "memfd_create": (319, 279), "clone": (56, 220),
    "shmget": (29, 194), "personality": (135, 92), "io_uring_setup": (425, 425), "open_tree": (428, 428),
    "fsopen": (430, 430), "pidfd_open": (434, 434), "clone3": (435, 435), "mount_setattr": (442, 442),
}  # fmt: skip
"""Numbers on x86_64 and aarch64 of the calls that attacks use most."""
KERNEL_FILES = (
    *(
        "/proc/sysrq-trigger",
        "/proc/self/oom_score_adj",
        "/proc/irq/default_smp_affinity",
        "/proc/sys/kernel/core_pattern",
    ),
    *("/dev/mem", "/dev/kmsg", "/dev/ptmx", "/dev/tty", "/dev/fuse", "/dev/kvm", "/dev/net/tun", "/dev/vsock"),
    *("/dev/nvidiactl", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs"),
)
FOLDERS = ("/", "/tmp", "/usr", "/lib", "/dev", "/dev/shm", "/etc", "/proc", "/run", "/var/tmp")  # noqa: S108


def require(holds: bool, leak: str) -> None:
    """Raise AssertionError with the leak unless this holds."""
    if not holds:
        raise AssertionError(leak)


def fails(what: str, attempt: Callable[..., Any], *arguments: Any) -> None:
    """Raise AssertionError unless the attempt fails."""
    try:
        attempt(*arguments)
    except (OSError, RuntimeError):
        return
    raise AssertionError(f"it can {what}")


def _create(folder: str) -> None:
    path = os.path.join(folder, ".servebench-leak")  # noqa: PTH118 - pathlib is slow to import
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    os.remove(path)  # noqa: PTH107


def _write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY))


def _fork() -> None:
    if os.fork() == 0:
        os._exit(7)


def _share_memory() -> None:
    import mmap

    mmap.mmap(-1, mmap.PAGESIZE).close()


def _send_descriptor() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [0])


def _fill(folder: str, count: int) -> None:
    made = []
    try:
        for number in range(count):
            os.symlink("x", f"{folder}/leak{number}")  # noqa: PTH211
            made.append(number)
    finally:
        for number in made:
            os.remove(f"{folder}/leak{number}")  # noqa: PTH107


def check_identity() -> None:
    """Check that the user has no privileges here and is not root outside. Raises AssertionError."""
    with open("/proc/self/status") as file:  # noqa: PTH123
        status = dict(line.split(":", 1) for line in file if ":" in line)
    require("0" not in f"{status['Uid']} {status['Gid']}".split(), "it is root")
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}") as file:  # noqa: PTH123
            for line in file:
                _, outside, count = line.split()
                require(outside != "0" and count == "1", "its user is root outside of the sandbox")
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        require(int(status[name], 16) == 0, "it has capabilities")
    require(status["NoNewPrivs"].strip() == "1", "it can gain privileges")
    require(status["Seccomp"].strip() == "2", "its system calls are not filtered")
    require(set(os.environ) <= {"PATH", "LC_ALL", "PWD", "LC_CTYPE"}, "the environment is visible")
    fails("become root", os.setuid, 0)


def check_processes() -> None:
    """Check that no process can be made, seen or reached, and that resources are limited. Raises AssertionError."""
    seen = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    require(os.getpid() < 100 and len(seen) < 4, "other processes are visible")
    require(len(os.listdir("/proc/self/fd")) <= 5, "descriptors were inherited")  # noqa: PTH208
    fails("start a process", _fork)
    fails("start a thread", _thread.start_new_thread, int, ())
    fails("write to the memory of another process", _write, "/proc/1/mem")
    require(resource.getrlimit(resource.RLIMIT_NPROC) == (0, 0), "processes are not limited")
    require(0 < resource.getrlimit(resource.RLIMIT_AS)[1] < 2**40, "memory is not limited")


def check_memory(folder: str, files: int) -> None:
    """Check that the kernel keeps little memory for a program, which no limit of its own counts. Raises AssertionError."""
    fails("share memory", _share_memory)
    fails("send descriptors", _send_descriptor)
    fails("lock files", fcntl.lockf, 0, fcntl.LOCK_SH)
    fails("enlarge pipes", fcntl.fcntl, 0, fcntl.F_SETPIPE_SZ, 1 << 20)
    fails(f"make {files} files", _fill, folder, files)


def check_files(needed: Sequence[str], private: Sequence[str]) -> None:
    """Check that nothing can be written, and nothing seen in private folders but what is needed. Raises AssertionError."""
    for folder in (*FOLDERS, *private):
        fails(f"write to {folder}", _create, folder)
    for folder in private:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():  # noqa: PTH112, PTH208
            path = f"{folder}/{name}/"
            shown = any(f"{place}/".startswith(path) or path.startswith(f"{place}/") for place in needed)
            require(shown, f"it sees {path}")


def check_kernel(allowed: Sequence[int]) -> None:
    """Check that the kernel's files, sockets and dangerous calls are out of reach. Raises AssertionError."""
    require(bool(os.statvfs("/proc").f_flag & os.ST_RDONLY), "/proc is writable")
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            require(not os.access(f"{folder}/{name}", os.W_OK), f"it can write to {folder}/{name}")
    for path in KERNEL_FILES:
        fails(f"write to {path}", _write, path)
    require(not os.path.exists("/sys/kernel"), "it sees /sys")  # noqa: PTH110
    for family in range(64):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            fails(f"open a socket of family {family}", socket.socket, family, kind)
        if family != socket.AF_UNIX:
            fails(f"open a pair of sockets of family {family}", socket.socketpair, family)
    libc = ctypes.CDLL(None, use_errno=True)
    for name, numbers in DENIED_CALLS.items():
        number = numbers[0 if os.uname().machine == "x86_64" else 1]
        ctypes.set_errno(0)
        status = libc.syscall(number, -1, -1, -1, -1, -1, -1)
        require(number not in allowed and status == -1 and ctypes.get_errno() == ENOSYS, f"it can call {name}")
