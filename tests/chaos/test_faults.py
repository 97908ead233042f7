"""Faults one by one: full and read-only disks, processes that are stopped, an engine that is silent, no descriptors, no
ports, trackers that fail, networks that fail, a clock that is stepped. Each ends in time, says why, and can be resumed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pandas as pd
import pytest

from chaos import harness
from support.hostile import HostileServer, drip, silent
from support.servers import ScriptedServer
from support.waiting import wait_until

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.chaos
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, network namespaces")

ONE = (
    *("engine=vllm", *harness.FAST, "load.concurrency=[2]", "load.requests=40", "load.warmup_requests=0"),
    *("workload.output_tokens=64", "launch.time_scale=0.2", "study.name=s"),
)
LEVEL = {"c2-r0": 40}
MIB = 1 << 20


@pytest.fixture
def scene(tmp_path):
    made = harness.Scene(tmp_path)
    yield made
    for pid in made.living():
        harness.kill(pid)


def loaded(scene, *words, process=None, size=20_000):
    """Start a study, or take one that was started, and return it once answers of a point are coming in."""
    process = process or scene.start(*ONE, "tracking=none", *words)
    spools = scene.study.glob
    wait_until(lambda: [one for one in spools("*/raw/*.spool") if one.stat().st_size > size], process=process)
    return process


def ended(process, within_s=600.0):
    """Exit code and standard error of a command that must end in time."""
    try:
        process.said, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it did not end within {within_s:g} s") from None
    assert "Traceback" not in err, err
    return process.returncode, err


def resumed_whole(scene):
    scene.run("resume", "s", "--failed", timeout_s=300, code=0)
    assert harness.faults_of(scene.study, points=LEVEL) == []


def row(scene, index=-1):
    (table,) = scene.study.glob("*/points.parquet")
    return pd.read_parquet(table).iloc[index]


def measured(scene):
    """The requests of the only run, without those that only keep the level while the last ones end."""
    rows = pd.read_parquet(next(scene.study.glob("*/requests.parquet")))
    return rows[~rows.warmup]


@contextlib.contextmanager
def small_disk(folder, mib=96):
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


@root
def test_a_disk_that_gets_full(scene):
    with small_disk(scene.folder / "outputs"):
        process = loaded(scene)
        filler = scene.folder / "outputs" / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(MIB // 16))
        code, err = ended(process)
        assert scene.gone() == {}
        assert code == 6, err
        assert "the disk is full" in err
        filler.unlink()
        resumed_whole(scene)


@root
def test_outputs_that_become_read_only(scene):
    outputs = scene.folder / "outputs"
    with small_disk(outputs):
        process = loaded(scene)
        # a file that is open for writing keeps the file system from it; a second mount over it does not mind
        subprocess.run(["mount", "-o", "remount,bind,ro", outputs], check=False)
        subprocess.run(["mount", "--bind", outputs, outputs], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", outputs], check=True)
        code, err = ended(process)
        assert scene.gone() == {}
        assert (code, "read-only" in err) == (6, True), err
        subprocess.run(["umount", outputs], check=True)
        subprocess.run(["mount", "-o", "remount,bind,rw", outputs], check=True)
        resumed_whole(scene)


@pytest.mark.parametrize("what", ["engine", "worker"])
def test_a_process_that_is_stopped_and_goes_on(scene, what):
    """Three seconds asleep are a slow answer, no more."""
    process = loaded(scene)
    pids = scene.victims(what, process.pid)
    for pid in pids:
        harness.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    for pid in pids:
        harness.kill(pid, signal.SIGCONT)
    code, err = ended(process)
    assert code == 0, err
    assert scene.gone() == {}
    assert (row(scene).requests_ok, row(scene).requests_failed) == (40, 0)


def test_an_engine_that_lives_and_is_silent(scene):
    """Ended by the watchdog: load.timeout_s and 30 s after its last byte; the row says so, the stopped engine is killed."""
    process = loaded(scene, "load.timeout_s=8")
    for pid in scene.victims("engine", process.pid):
        harness.kill(pid, signal.SIGSTOP)
    code, err = ended(process)
    assert code == 4, err
    assert "sent no data for 38 s" in err, err
    assert "waiting: concurrency 2" in err
    assert scene.gone() == {}
    assert "no_progress" in row(scene).doubts
    assert row(scene).verdict == "void"
    resumed_whole(scene)


def test_a_worker_that_hangs(scene):
    process = loaded(scene)
    (pid,) = scene.victims("worker", process.pid)
    harness.kill(pid, signal.SIGSTOP)
    code, err = ended(process)
    assert scene.gone() == {}
    assert "worker_died" in row(scene).doubts
    assert "no progress for 60 s" in process.said, err
    assert code == 5, err
    assert pd.read_parquet(next(scene.study.glob("*/requests.parquet"))).request_id.is_unique
    resumed_whole(scene)


@pytest.mark.parametrize("apart_s", [0.0, 0.4, 1.0])
def test_two_that_resume_one_study(scene, apart_s):
    """One does it, the other says so at once; and a third while it is at work."""
    process = loaded(scene)
    harness.kill(process.pid)
    process.communicate()
    assert scene.gone() == {}
    first = scene.start("resume", "s")
    time.sleep(apart_s)
    second = scene.start("resume", "s")
    codes = sorted(ended(one)[0] for one in (first, second))
    assert codes == [0, 2]
    assert scene.gone() == {}
    assert harness.faults_of(scene.study, points=LEVEL) == []


def limited(words, what):
    return [sys.executable, "-c", f"import resource, runpy, sys; {what}; sys.argv = ['servebench', *{list(words)!r}]; "
            "runpy.run_module('servebench', run_name='__main__')"]  # fmt: skip


def test_no_descriptors_left(scene):
    """The hard limit is below what the level needs: every request has its row, or one line says what to do."""
    harm = HostileServer(lambda number, method, path: "steady" if method == "POST" else None)
    words = (
        *("engine=openai", "launch=attach", f"launch.base_url={harm.base_url}", "model.name=tiny", "workload=unique"),
        *("workload.output_tokens=3", "load.concurrency=[200]", "load.requests=200", "load.warmup_requests=0"),
        *("load.self_check=never", "tracking=none", "study.name=s"),
    )
    command = limited(words, "resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))")
    process = subprocess.Popen(
        command, cwd=scene.folder, env=scene.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    code, err = ended(process)
    harm.close()
    assert scene.gone() == {}
    tables = list(scene.study.glob("*/requests.parquet"))
    if not tables:
        assert code in (3, 5), err
        assert "file descriptor" in err or "open files" in err, err
        return
    rows = pd.read_parquet(tables[0])
    assert len(rows) == 200
    failed = rows[rows.outcome != "ok"]
    assert len(failed) > 50
    assert failed.error.str.contains("too many open files").all()


def failing_tracker(behaviour):
    """The script of an MLflow server that is healthy and fails in one way."""

    def script(connection, request):
        if request.path.endswith("/health"):
            return 200, b"OK"
        if behaviour == "500":
            return 500, b""
        if behaviour == "html":
            return 200, b"<html>hi</html>"
        if behaviour == "drip":
            drip(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" ")
        return silent(connection)

    return script


@pytest.mark.parametrize("behaviour", ["500", "hang", "html", "drip", "down"])
def test_a_tracker_that_fails_costs_no_result(scene, behaviour):
    """A tracker that hangs or drips never ends by itself: the command gave up on it."""
    with ScriptedServer(failing_tracker(behaviour)) as server:
        if behaviour == "down":
            server.close()
        words = (f"tracking.uri={server.url}", "tracking.timeout_s=1", "load.requests=40")
        code, err = ended(scene.start(*ONE, *words))
    assert code == 0, err
    assert "servebench sync" in err
    assert harness.faults_of(scene.study, points=LEVEL) == []
    assert scene.gone() == {}


class Networks:
    """Two network namespaces with a wire between: 10.77.0.1 (servebench) and 10.77.0.2 (the server)."""

    def __init__(self):
        name = uuid.uuid4().hex[:6]
        self.here, self.there = f"sbc{name}a", f"sbc{name}b"
        self.links = (f"v{name}a", f"v{name}b")

    def do(self, *words):
        subprocess.run([str(word) for word in words], check=True, capture_output=True)

    def inside(self, where, *words):
        return ["ip", "netns", "exec", where, *words]

    def __enter__(self):
        self.do("ip", "netns", "add", self.here)
        self.do("ip", "netns", "add", self.there)
        self.do("ip", "link", "add", self.links[0], "type", "veth", "peer", "name", self.links[1])
        for space, link, address in zip((self.here, self.there), self.links, ("1", "2"), strict=True):
            self.do("ip", "link", "set", link, "netns", space)
            self.do(*self.inside(space, "ip", "addr", "add", f"10.77.0.{address}/24", "dev", link))
            self.do(*self.inside(space, "ip", "link", "set", link, "up"))
            self.do(*self.inside(space, "ip", "link", "set", "lo", "up"))
        return self

    def __exit__(self, *_):
        for space in (self.here, self.there):
            subprocess.run(["ip", "netns", "del", space], check=False)


@pytest.fixture
def wire(scene):
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    with Networks() as networks:
        server = subprocess.Popen(
            networks.inside(networks.there, sys.executable, "-m", "support.hostile", "steady", "10.77.0.2", "8000"),
            cwd=TESTS,
        )
        time.sleep(2)
        yield networks
        server.kill()
        server.wait()


def over_the_wire(scene, networks, *words):
    command = (
        *("engine=openai", "launch=attach", "launch.base_url=http://10.77.0.2:8000/v1", "model.name=tiny"),
        *("workload=unique", "workload.output_tokens=3", "load.concurrency=[4]", "load.requests=40"),
        *("load.warmup_requests=0", "load.self_check=never"),
        *("tracking=none", "study.name=s", "load.timeout_s=5", *words),
    )
    return subprocess.Popen(
        networks.inside(networks.here, sys.executable, "-m", "servebench", *command),
        cwd=scene.folder, env=scene.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_network_with_loss(scene, wire):
    """A packet in twenty lost both ways (and 40 ms of delay where the kernel has netem): slower, and all are answered."""
    delayed = 0
    for space, link in zip((wire.here, wire.there), wire.links, strict=True):
        netem = ("tc", "qdisc", "add", "dev", link, "root", "netem", "delay", "40ms", "loss", "5%")
        if subprocess.run(wire.inside(space, *netem), check=False, capture_output=True).returncode == 0:
            delayed += 1
            continue
        lose = ("-m", "statistic", "--mode", "random", "--probability", "0.05", "-j", "DROP")
        if subprocess.run(wire.inside(space, "iptables", "-A", "INPUT", *lose), check=False).returncode:
            pytest.skip("this kernel has neither netem nor the statistic match")
    process = over_the_wire(scene, wire, "load.timeout_s=60")
    code, err = ended(process)
    assert code == 0, err
    assert (row(scene).requests_ok, row(scene).requests_failed) == (40, 0)
    assert row(scene).ttft_ms_p50 > 39 * delayed


@pytest.mark.skipif(shutil.which("iptables") is None, reason="needs iptables")
@pytest.mark.parametrize("back", [True, False], ids=["comes back", "stays away"])
def test_a_network_that_is_cut_in_mid_stream(scene, wire, back):
    """Half-open streams end by their deadline; a network that stays away ends the point."""
    process = loaded(scene, process=over_the_wire(scene, wire), size=10_000)
    wire.do(*wire.inside(wire.there, "iptables", "-A", "OUTPUT", "-j", "DROP"))
    if back:
        time.sleep(8)
        wire.do(*wire.inside(wire.there, "iptables", "-F", "OUTPUT"))
    code, err = ended(process)
    assert scene.gone() == {}
    rows = measured(scene)
    outcomes = rows.outcome.value_counts().to_dict()
    assert rows.request_id.is_unique
    assert outcomes["ok"] >= 1
    assert outcomes["timeout"] >= 4
    if back:
        assert (code, sum(outcomes.values())) == (0, 40), err
        assert "errors" in row(scene).doubts
    else:
        assert {"no_progress", "errors"} & set(row(scene).doubts), row(scene).doubts


def test_no_ports_left(scene, wire):
    """A hundred streams and 24 local ports: those without one fail by name, the others are answered."""
    wire.do(*wire.inside(wire.here, "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40023"))
    process = over_the_wire(scene, wire, "load.concurrency=[100]", "load.requests=100")
    code, err = ended(process)
    assert scene.gone() == {}
    rows = measured(scene)
    failed = rows[rows.outcome != "ok"]
    assert len(rows) == 100
    assert len(failed) > 20
    assert failed.error.str.contains("cannot assign requested address").any(), failed.error.unique()
    assert "errors" in row(scene).doubts
    assert code == 0, err


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *ts) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, ts);
    if (id == CLOCK_REALTIME && access(CLOCK_STEP_FILE, F_OK) == 0) ts->tv_sec += 30;
    return code;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc for a shim of clock_gettime")
def test_a_clock_that_is_stepped(scene):
    """Half a minute forward in mid-point: the row says so, and its numbers are void."""
    (scene.folder / "shim.c").write_text(SHIM)
    flag = scene.folder / "stepped"
    # workers get few variables: the path is compiled in
    command = ["gcc", "-shared", "-fPIC", "-O1", f'-DCLOCK_STEP_FILE="{flag}"', "-o", "shim.so", "shim.c", "-ldl"]
    subprocess.run(command, cwd=scene.folder, check=True)
    scene.env |= {"LD_PRELOAD": str(scene.folder / "shim.so")}
    process = loaded(scene)
    flag.touch()
    code, err = ended(process)
    assert scene.gone() == {}
    assert "clock_stepped" in row(scene).doubts, err
    assert len(measured(scene)) == 40
    assert code == 0, err
