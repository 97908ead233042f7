"""What generated code tries against the machine and servebench, and a sandbox that lacks one of its walls."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from servebench_graders import sandbox
from servebench_graders.sandbox import SandboxLimits, run_program
from support.waiting import wait_until, words_of

BWRAP = shutil.which("bwrap")
pytestmark = pytest.mark.skipif(BWRAP is None, reason="bubblewrap is not installed")
LIMITS = SandboxLimits(wall_s=300.0)
CALL = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"


def _setting(name):
    """A program that writes a kernel setting's own value back: a leak is seen and changes nothing."""
    return f"value = open('/proc/sys/{name}').read(); open('/proc/sys/{name}', 'w').write(value)"


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        *map(_setting, ["kernel/core_pattern", "kernel/hostname", "vm/swappiness", "kernel/domainname", "fs/file-max"]),
        "import os; os.chmod('/proc/sys/kernel/core_pattern', 0o666)",
        "open('/proc/sysrq-trigger', 'w')",
        "open('/proc/self/oom_score_adj', 'w').write('0')",
        "open('/proc/1/oom_score_adj', 'w').write('0')",
        "open('/proc/1/mem', 'r+b')",
        "open('/proc/self/uid_map', 'w').write('0 0 1')",
        "open('/dev/mem', 'rb')",
        "open('/dev/kmsg', 'w')",
        "open('/dev/vsock')",
        "import os; os.openpty()",
        "import os; os.listdir('/sys')",
        "import os; os.mknod('/box/disk', 0o60600, os.makedev(8, 0))",
        *(f"import socket; socket.socket({family}, {kind})" for family in (1, 2, 10, 15, 16, 17, 38, 40) for kind in (1, 2, 3)),
        "import socket; socket.socketpair(socket.AF_INET)",
        "import socket; socket.socket(socket.AF_UNIX).connect('\\0abstract')",
        CALL + "assert libc.mount(b'proc', b'/box', b'proc', 0, None) == 0",
        CALL + "assert libc.syscall(430, b'proc', 0) >= 0",
        CALL + "import os; assert libc.syscall(425, 8, ctypes.create_string_buffer(120)) >= 0",
        CALL + "assert libc.setns(0, 0) == 0",
        CALL + "assert libc.ptrace(16, 1, 0, 0) == 0",
        CALL + "assert libc.syscall(250 if __import__('os').uname().machine == 'x86_64' else 219, 0, -3, 1) >= 0",
        CALL + "assert libc.syscall(434, 1, 0) >= 0",
        "import os; os.setgroups([0])",
        "import os; os.setresuid(0, 0, 0)",
        "import os; os.chroot('/box')",
        "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        "import os; [os.fork() for _ in range(9)]",
        "import glob; assert [p for p in glob.glob('/proc/[0-9]*/environ') if 'SECRET' in open(p).read()]",
        "import os; assert len(os.listdir('/proc/self/fd')) > 5",
        "import os; assert any(os.readlink(f'/proc/self/fd/{n}')[:6] == '/memfd' for n in os.listdir('/proc/self/fd')[3:4])",
    ],
)  # fmt: skip
def test_an_attack_fails(working, attack, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "SECRET")
    result = run_program(attack, LIMITS)
    assert result.outcome == "failed", result


@pytest.mark.parametrize(
    "make",
    [
        "os.symlink('x', name)",
        "os.symlink('x' * 4000, name)",
        "os.link('/box/one', name)",
        "os.mkdir(name)",
        "open(name, 'w').close()",
        "os.mkdir(name) or os.symlink('x', name + '/y')",
        "os.symlink('x', name + 'n' * 200)",
    ],
)
def test_files_are_few_whatever_they_are(working, make):
    program = f"""
import os
open('/box/one', 'w').close()
made = 0
try:
    while made < 20 * {LIMITS.files}:
        name = '/box/%d' % made
        {make}
        made += 1
except OSError:
    pass
print(made)
"""
    result = run_program(program, LIMITS)
    assert result.outcome == "passed", result
    assert 0 < int(result.last_line) <= LIMITS.files


@pytest.mark.parametrize(
    "keep",
    [
        # descriptors in a queue are open, and no limit counts them
        "import socket; a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0])",
        "import socket; a, b = socket.socketpair(); a.sendmsg([b'x'])",
        "import socket; a, b = socket.socketpair(type=socket.SOCK_DGRAM); a.setsockopt(1, socket.SO_SNDBUF, 1 << 20)",
        # shared memory stays whole while one page of it is mapped
        "import mmap; mmap.mmap(-1, 4096)",
        "import mmap; mmap.mmap(open('/dev/zero', 'r+b', 0).fileno(), 4096)",
        "import mmap; f = open('/box/x', 'w+b'); f.truncate(4096); mmap.mmap(f.fileno(), 4096)",
        "import fcntl; f = open('/box/x', 'w'); [fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * n) for n in range(9)]",
        "import fcntl, os; fcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 1 << 20)",
        "import fcntl, os; fcntl.fcntl(os.open('/box', 0), fcntl.F_NOTIFY, 1)",
        "import fcntl; fcntl.fcntl(open('/box/x', 'w'), fcntl.F_SETLEASE, fcntl.F_WRLCK)",
        "import os; f = open('/box/x', 'w'); os.setxattr('/box/x', 'user.x', b'y')",
        "import resource; resource.setrlimit(resource.RLIMIT_SIGPENDING, (999, 999))",
    ],
)
def test_the_kernel_keeps_no_memory_for_a_program(working, keep):
    result = run_program(keep, LIMITS)
    assert result.outcome == "failed", result
    assert "OSError" in result.last_line or "Error: [Errno" in result.last_line or "ValueError" in result.last_line


@pytest.mark.slow
def test_the_program_is_not_root_for_the_kernel(working):
    """The user that the machine sees is not root, and has no capabilities; inside, no id is root's outside."""
    thread = threading.Thread(target=run_program, args=("import time; time.sleep(9999)", LIMITS))
    thread.start()
    me = psutil.Process()

    def sandboxed():
        """The program, and not bubblewrap itself, which a copy of it has another name for."""
        return [
            one
            for one in me.children(recursive=True)
            if "--unshare-all" not in (words := words_of(one)) and "/program.py" in " ".join(words)
        ]

    (program,) = wait_until(sandboxed)
    expected = sandbox.UNPRIVILEGED if os.getuid() == 0 else os.getuid()
    # a process that is replacing its program has no command line for a moment
    wait_until(lambda: set(program.uids()) == {expected} and program.cmdline()[:1] not in ([], [sys.executable]))
    assert set(program.uids()) == set(program.gids()) == {expected} or os.getuid() != 0
    assert [
        line.split()
        for line in Path(f"/proc/{program.pid}/status").read_text().splitlines()
        if line.startswith("CapEff")
    ] == [["CapEff:", "0" * 16]]
    program.kill()
    thread.join()


GROUPS = """\
#!/bin/sh
echo "$@" >> {log}
[ {works} = yes ] || exit 1
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.mark.parametrize("works", ["yes", "no"])
def test_a_program_is_in_a_memory_cgroup_where_systemd_makes_one(working, monkeypatch, open_folder, works):
    """A stand-in for systemd-run, which most machines of tests cannot use."""
    program, log = open_folder / "systemd-run", open_folder / "log"
    program.write_text(GROUPS.format(log=log, works=works))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    sandbox._memory_group.cache_clear()
    try:
        assert run_program("print(7)", LIMITS).last_line == "7"
    finally:
        sandbox._memory_group.cache_clear()
    asked = [line.split() for line in log.read_text().splitlines()]
    assert len(asked) == (2 if works == "yes" else 1)
    for words in asked:
        (limit,) = (int(word.partition("=")[2]) for word in words if word.startswith("MemoryMax="))
        assert LIMITS.memory_bytes + LIMITS.folder_bytes < limit < 2 * LIMITS.memory_bytes
        assert ("--user" in words) == (os.getuid() != 0)


FAKE = """\
#!/bin/sh
last=
for word do
  shift
  case "$last $word" in
    {pattern}) set -- "$@" {instead}; last=; continue;;
  esac
  [ -n "$last" ] && set -- "$@" "$last"
  last=$word
done
exec {bwrap} "$@" "$last"
"""


@pytest.fixture
def open_folder():
    """A folder that all users may read; another session of pytest closes those above `tmp_path` when it begins."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "instead", "leak"),
    [
        ("'--remount-ro /'", "", "it can write to /"),
        ("'--remount-ro /proc'", "", "it can write to the memory of another process"),
        ("'--remount-ro /dev'", "", "it can write to /dev"),
        ("'--seccomp '[0-9]*", "", "its system calls are not filtered"),
        ("'--unshare-all --die-with-parent'", "--unshare-uts --unshare-net", "other processes are visible"),
        ("'--chdir /box'", "--ro-bind {private} {private} --chdir /box", "it sees"),
        ("'--chdir /box'", "--ro-bind /sys /sys --chdir /box", "it sees /sys"),
        ("'--remount-ro /dev'", "--dev-bind /dev/full /dev/kmsg --remount-ro /dev", "it can write to /dev/kmsg"),
    ],
)
def test_the_probe_finds_a_wall_that_is_missing(
    working, monkeypatch, open_folder, pattern, instead, leak, sandbox_fault
):
    private = open_folder / "private"
    private.mkdir()
    (private / "key").touch()
    monkeypatch.chdir(private)
    fake = open_folder / "bin" / "bwrap"
    fake.parent.mkdir()
    for path in (private, fake.parent):
        # whatever the umask of this process is
        path.chmod(0o755)
    (private / "key").chmod(0o644)
    fake.write_text(FAKE.format(pattern=pattern, instead=instead.format(private=private), bwrap=BWRAP))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    assert leak in sandbox_fault()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can keep root's privileges")
@pytest.mark.parametrize(
    ("name", "value", "said"), [("_is_root", lambda: False, "root"), ("UNPRIVILEGED", 2**32 - 1, "root")]
)
def test_root_that_keeps_its_privileges_is_refused(monkeypatch, name, value, said, sandbox_fault):
    monkeypatch.setattr(sandbox, name, value)
    assert said in sandbox_fault()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can lose a capability that it has")
def test_root_without_the_right_to_change_users_is_refused_with_what_to_do():
    if shutil.which("setpriv") is None:
        pytest.skip("util-linux has no setpriv here")
    code = "from servebench_graders.sandbox import sandbox_errors; print(*sandbox_errors())"
    command = ["setpriv", "--bounding-set", "-setuid", "--inh-caps", "-setuid", sys.executable, "-c", code]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=True)
    assert "cannot be dropped: cannot become the user 65534" in done.stdout
    assert "run servebench as a normal user" in done.stdout
