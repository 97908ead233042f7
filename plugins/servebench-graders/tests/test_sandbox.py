import os
import socket
import struct
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import psutil
import pytest

from servebench.plugin import PreflightError
from servebench_graders import sandbox
from servebench_graders.sandbox import SandboxLimits, run_program, sandbox_errors
from servebench_graders.syscalls import ALLOWED, syscall_filter
from support.waiting import wait_ended, wait_until

LIMITS = SandboxLimits(wall_s=300.0, cpu_s=2, memory_bytes=128 * 2**20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "outcome", "said"),
    [
        ("print('here')", "passed", "here"),
        ("assert 1 == 2, 'wrong'", "failed", "AssertionError: wrong"),
        ("def f(:", "failed", "SyntaxError"),
        ("import sys; sys.exit(0)", "left_early", ""),
        ("import os; os._exit(0)", "left_early", ""),
        ("while True: pass", "timeout", ""),
        ("x = bytearray(10**9)", "memory", ""),
        ("x = []\nwhile True: x.append('a' * 10**7)", "memory", ""),
        ("while True: print('x' * 10**5)", "too_much_output", "xxx"),
        ("import os; os.kill(os.getpid(), 9)", "killed", ""),
        ("import ctypes; ctypes.string_at(0)", "killed", ""),
        ("def f(): return f()\nf()", "failed", "RecursionError"),
        ("print('bwrap: no'); raise SystemExit(1)", "failed", "bwrap: no"),
        (
            "import os\nfor fd in range(3, 4096):\n try: os.write(fd, b'x' * 99)\n except OSError: pass",
            "left_early",
            "",
        ),
        ("if __name__ == '__main__': raise SystemExit(3)", "passed", ""),
    ],
)
def test_how_a_program_ended_is_told(working, program, outcome, said):
    result = run_program(program, LIMITS)
    assert result.outcome == outcome
    assert said in result.last_line
    assert len(result.last_line) <= 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "attempt",
    [
        "import os\nwhile True: os.fork()",
        "import threading\nthreading.Thread(target=print).start()",
        "import subprocess; subprocess.run(['true'])",
        "import multiprocessing; multiprocessing.Process(target=print).start()",
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); assert libc.unshare(0x10000000) == 0",
        "import os; os.memfd_create('x')",
        "import ctypes; assert ctypes.CDLL(None).shmget(0, 2**24, 0o1600) >= 0",
        "import ctypes; assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0",
        "import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)",
        "import socket; socket.create_connection(('1.1.1.1', 53), timeout=2)",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/')",
        "open('/usr/{name}', 'w')",
        "open('/{name}', 'w')",
        "open('/tmp/{name}', 'w')",
        "open('/dev/shm/{name}', 'w')",
        "open('{outside}', 'w')",
        "open('{outside}')",
        "import os; os.listdir('{folder}')",
        "open('/program.py', 'a')",
        "open('/etc/passwd')",
        "open('/box/big', 'wb').truncate(2**27)",
        "for i in range(40): open('/box/%d' % i, 'wb').write(b'0' * 2**20)",
        "for i in range(200): open('/box/%d' % i, 'w')\nkeep = [open('/box/%d' % i) for i in range(200)]",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
        "import os; os.setuid(0)",
        "import os; os.kill({pid}, 9)",
        "import os; assert os.environ['SECRET_TOKEN']",
        "import glob; assert any('SECRET' in open(place).read() for place in glob.glob('/proc/[0-9]*/environ'))",
    ],
)
def test_nothing_gets_out(working, attempt, tmp_path, monkeypatch):
    """Each attempt must raise inside: a pass would mean that it got what it wanted."""
    monkeypatch.setenv("SECRET_TOKEN", "SECRET")
    outside = tmp_path / "outside"
    outside.write_text("private")
    with socket.create_server(("127.0.0.1", 0)) as server, subprocess.Popen(["sleep", "60"]) as bystander:
        words = {"port": server.getsockname()[1], "name": uuid.uuid4().hex, "outside": outside, "folder": tmp_path}
        text = attempt
        for key, value in {**words, "pid": bystander.pid}.items():
            text = text.replace(f"{{{key}}}", str(value))
        result = run_program(text, LIMITS)
        alive = bystander.poll() is None
        bystander.kill()
    assert result.outcome == "failed", result
    assert alive
    assert outside.read_text() == "private"
    assert not [path for folder in ("/tmp", "/usr", "/dev/shm", "/") for path in Path(folder).glob(words["name"])]


def test_the_home_folder_is_not_there(working):
    listing = "import os; print(sorted(os.listdir('/')))"
    seen = run_program(listing, LIMITS).last_line
    assert "home" not in seen
    assert "tmp" not in seen
    inside = f"import os; print(os.path.exists({str(Path.home() / '.ssh')!r}), os.path.exists({str(Path.cwd())!r}))"
    assert run_program(inside, LIMITS).last_line == "False False"


def test_the_sandbox_outlives_an_attack_on_its_own_first_process(working):
    result = run_program("import os\nos.kill(1, 9); os.kill(os.getppid(), 9)\nprint('still here')", LIMITS)
    assert (result.outcome, result.last_line) == ("passed", "still here")


@pytest.mark.slow
def test_a_sleeper_and_a_program_that_closes_its_output_end_at_the_wall(working):
    for program in ("import time; time.sleep(9999)", "import os, time; os.close(1); os.close(2); time.sleep(9999)"):
        assert run_program(program, SandboxLimits(wall_s=1.5)).outcome == "timeout"


def test_nothing_is_left_behind(working):
    mark = uuid.uuid4().hex
    program = f"import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(9999)\n'{mark}'"
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    run_program(program, SandboxLimits(wall_s=1.0))
    wait_until(lambda: {process.pid for process in psutil.Process().children(recursive=True)} <= before)


def test_it_dies_with_the_program_that_started_it(working, tmp_path):
    """servebench killed by kill -9 must not leave generated code running."""
    code = (
        "from servebench_graders.sandbox import SandboxLimits, run_program\n"
        "run_program('import time; time.sleep(9999)', SandboxLimits(wall_s=9999))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        watched = psutil.Process(child.pid)
        inside = wait_until(lambda: len(found := watched.children(recursive=True)) >= 3 and found)
        child.kill()
    wait_ended(*(one.pid for one in inside))


def test_programs_run_side_by_side(working):
    results: dict[int, str] = {}

    def one(number):
        results[number] = run_program(f"open('/box/x', 'w').write('{number}'); print(open('/box/x').read())").last_line

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: str(number) for number in range(4)}


def test_without_bubblewrap_code_is_refused_with_the_way_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.require_sandbox.cache_clear()
    with pytest.raises(PreflightError, match="apt-get install bubblewrap"):
        run_program("print(1)")
    (fault,) = sandbox_errors()
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1", "setting up uid map: Permission denied"),
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "allow user namespaces"),
        # a bwrap that starts the program with no walls: the probe must find out
        ('while [ "$1" != -I ]; do shift; done; exec /usr/bin/env python3 "$@"', "leaks on this machine"),
        ("exit 0", "it ended with status 0"),
    ],
)
def test_a_sandbox_that_does_not_work_is_refused(monkeypatch, tmp_path, script, said, sandbox_fault):
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert said in sandbox_fault()


def test_an_unknown_machine_is_refused(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/bwrap")
    with pytest.raises(PreflightError, match="riscv64"):
        run_program("print(1)")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_allows_what_it_names_and_nothing_else(machine):
    """The program is run here by the rules of classic BPF, so that the table of another machine is tested too."""
    data = syscall_filter(machine)
    steps = [struct.unpack("=HBBI", data[at : at + 8]) for at in range(0, len(data), 8)]
    numbers, refused, allowed = ALLOWED[machine], 0x00050000 | 38, 0x7FFF0000

    def answer(number, *arguments, arch={"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]):
        place, value = 0, 0
        while True:
            code, yes, no, k = steps[place]
            place += 1
            if code == 0x20:
                value = {0: number, 4: arch, **{16 + 8 * at: word for at, word in enumerate(arguments)}}[k]
            elif code in (0x15, 0x45):
                place += yes if (value == k if code == 0x15 else value & k) else no
            else:
                return k

    right = {"socketpair": (1,), "fcntl": (9, 3), "mmap": (0, 9, 3, 0x22)}
    calls = {number: right.get(name, ()) for name, number in numbers.items()}
    assert {number for number in range(600) if answer(number, *calls.get(number, ())) == allowed} == set(calls)
    assert {answer(number) for number in {*range(600)} - {*numbers.values()}} == {refused}
    assert {answer(numbers["socketpair"], family) for family in range(64) if family != 1} == {refused}
    known = [*range(20), *range(1024, 1050)]
    assert {word for word in known if answer(numbers["fcntl"], 9, word) == allowed} == {0, 1, 2, 3, 4, 1030}
    assert {answer(numbers["mmap"], 0, 9, 3, flags) for flags in (1, 0x21, 3, 0x8003)} == {refused}
    assert answer(0x40000000 + 1) == refused
    assert answer(0, arch=1) == 0x80000000
    assert not {"socket", "clone", "clone3", "mount", "ptrace", "sendmsg", "sendmmsg", "recvmsg"} & set(numbers)
