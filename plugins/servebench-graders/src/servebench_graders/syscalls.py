"""The system calls that a program in the sandbox may make, as a seccomp filter. All others fail as not implemented."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

# name, number on x86_64, number on aarch64. What one process without threads, network and privileges needs: calls that make
# processes, namespaces, mounts, keys or sockets, that look into other processes, or that send descriptors, which live on in the
# kernel, are not among them
_TABLE = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
open 2 -, openat 257 56, creat 85 -, close 3 57, close_range 436 436, stat 4 -, fstat 5 80, lstat 6 -, newfstatat
262 79, statx 332 291, lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216, brk 12 214, madvise
28 233, msync 26 227, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigsuspend 130 133, rt_sigtimedwait 128 137, sigaltstack 131 132, ioctl 16 29, fcntl 72 25, flock 73 32, access
21 -, faccessat 269 48, faccessat2 439 439, pipe 22 -, pipe2 293 59, select 23 -, pselect6 270 72, poll 7 -, ppoll
271 73, sched_yield 24 124, dup 32 23, dup2 33 -, dup3 292 24, pause 34 -, nanosleep 35 101, clock_nanosleep 230
115, getitimer 36 102, setitimer 38 103, alarm 37 -, getpid 39 172, getppid 110 173, gettid 186 178, getpgid 121
155, getpgrp 111 -, getsid 124 156, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid
118 148, getresgid 120 150, getgroups 115 158, capget 125 90, socketpair 53 199, sendto 44 206, recvfrom 45 207,
shutdown 48 210, getsockname 51 204, getpeername 52 205, getsockopt 55 209,
execve 59 221, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95, kill 62 129, tkill
200 130, tgkill 234 131, uname 63 160, fsync 74 82, fdatasync 75 83, truncate 76 45, ftruncate 77 46, fallocate
285 47, fadvise64 221 223, sendfile 40 71, copy_file_range 326 285, getdents 78 -, getdents64 217 61, getcwd 79
17, chdir 80 49, fchdir 81 50, rename 82 -, renameat 264 38, renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir
84 -, link 86 -, linkat 265 37, unlink 87 -, unlinkat 263 35, symlink 88 -, symlinkat 266 36, readlink 89 -,
readlinkat 267 78, chmod 90 -, fchmod 91 52, fchmodat 268 53, umask 95 166, utime 132 -, utimes 235 -, utimensat
280 88, statfs 137 43, fstatfs 138 44, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11,
llistxattr 195 12, flistxattr 196 13, time 201 -, gettimeofday 96 169, clock_gettime 228 113, clock_getres 229
114, times 100 153, getrusage 98 165, sysinfo 99 179, getrlimit 97 163, setrlimit 160 164, prlimit64 302 261,
getpriority 140 141, sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120, getcpu 309
168, prctl 157 167, arch_prctl 158 -, set_tid_address 218 96, set_robust_list 273 99, rseq 334 293, futex 202 98,
membarrier 324 283, restart_syscall 219 128, getrandom 318 278, epoll_create 213 -, epoll_create1 291 20,
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19
"""
_ROWS = [entry.split() for entry in " ".join(_TABLE.split("\n")).strip().split(", ")]
ALLOWED: dict[str, dict[str, int]] = {
    machine: {row[0]: int(row[column]) for row in _ROWS if row[column] != "-"}
    for column, machine in enumerate(("x86_64", "aarch64"), start=1)
}
"""Numbers by machine and name (`platform.machine()`)."""

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ENOSYS = 38
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS, _ARGUMENT_BYTES = 0, 4, 16, 8
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_REFUSE = _ERRNO | _ENOSYS


@dataclass(frozen=True)
class _Rule:
    """A call that is allowed if one of its arguments has one of these values, or none of these bits."""

    argument: int
    values: Sequence[int] = ()
    without: int = 0

    def steps(self, number: int) -> list[tuple[int, int, int, int]]:
        """Return the steps that decide on the call, and lead on for others."""
        tests = [(_EQUAL, len(self.values) - place, 0, value) for place, value in enumerate(self.values)]
        if self.without:
            tests = [(_ANY_BIT, 0, 1, self.without)]
        load = (_LOAD, 0, 0, _ARGUMENTS + _ARGUMENT_BYTES * self.argument)
        decided = [load, *tests, (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
        return [(_EQUAL, 0, len(decided), number), *decided]


RULES = {
    # AF_UNIX: the network namespace does not isolate AF_VSOCK and AF_ALG
    "socketpair": _Rule(0, values=(1,)),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC: locks, leases and larger pipes are memory of the kernel
    "fcntl": _Rule(1, values=(0, 1, 2, 3, 4, 1030)),
    # MAP_SHARED: the kernel keeps what was written to shared memory as long as one page of it is mapped
    "mmap": _Rule(3, without=1),
}
"""The calls that are allowed with some arguments only."""


def syscall_filter(machine: str) -> bytes:
    """Return a seccomp program (classic BPF, a sequence of `struct sock_filter`) that allows the calls in `ALLOWED` by `RULES`.

    `socket` is not allowed at all. Calls of another architecture end the program; x32 has no allowed numbers. Raises KeyError
    for a machine without a table.
    """
    numbers = ALLOWED[machine]
    plain = sorted(number for name, number in numbers.items() if name not in RULES)
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _ARCHITECTURES[machine]), (_RETURN, 0, 0, _KILL)]
    steps += [(_LOAD, 0, 0, _NUMBER)]
    decided = [step for name, rule in RULES.items() for step in rule.steps(numbers[name])]
    after = [*decided, (_RETURN, 0, 0, _REFUSE)]
    steps += [(_EQUAL, len(plain) - 1 - place + len(after), 0, number) for place, number in enumerate(plain)]
    return b"".join(struct.pack("=HBBI", *step) for step in [*steps, *after, (_RETURN, 0, 0, _ALLOW)])
