"""Who uses the machine besides servebench and the engine, on synthetic /proc trees and on this machine."""

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from servebench.contracts.telemetry import CLIENT_ONLY, Subject
from servebench.telemetry.machine import CpuUse, MachineSource, engine_pid, others_now, read_tasks
from support.machines import write_proc
from support.waiting import wait_until

OWN, GUARD, ENGINE, HOG = 100, 101, 102, 900


def subject(pid=None, root_url="http://203.0.113.7:8000"):
    return Subject(
        engine=None, running=SimpleNamespace(pid=pid, pids=() if pid is None else (pid,), root_url=root_url), gpu=None
    )


def use(root, **more):
    return CpuUse(**{"proc": root, "own": OWN, "usable": frozenset((0, 1)), "ticks_s": 100.0, **more})


def looked(tmp_path, before, after, *, seconds=1.0, cpus=((), ()), sessions=None, began=None, **more):
    """What the second of two looks, a second apart, finds."""
    looks = use(tmp_path, **more)
    write_proc(tmp_path, before, cpus=cpus[0], sessions=sessions)
    assert looks.look(0.0) == {}
    write_proc(tmp_path, after, cpus=cpus[1], sessions=sessions, began=began)
    return looks.look(seconds)


def test_ours_are_the_tree_the_engine_and_the_sessions_that_they_began(tmp_path):
    def tree(cpu_s):
        return {
            1: (0, "init", 0, 0),
            OWN: (1, "servebench", cpu_s, 0),
            GUARD: (OWN, "guard", 0, 0),
            ENGINE: (GUARD, "llama-server", 2 * cpu_s, 0),
            # a daemon of the engine: its parent ended
            300: (1, "daemon", cpu_s / 2, 0),
            # an engine in a container
            400: (1, "vllm (x) 1", cpu_s / 4, 0),
            HOG: (1, "python", 3 * cpu_s, 0),
        }

    found = looked(tmp_path, tree(1), tree(1.4), sessions={GUARD: GUARD, ENGINE: GUARD, 300: GUARD}, engine=400)
    assert found["own_cores", ""] == pytest.approx(0.4 + 0.8 + 0.2 + 0.1)
    assert found["foreign_cores", f'pid="{HOG}",program="python"'] == pytest.approx(1.2)
    assert sum(cores for (name, _), cores in found.items() if name == "foreign_cores") == pytest.approx(1.2)


def test_another_engine_that_was_started_is_not_ours(tmp_path):
    """Engines that take turns: what the other one does meanwhile is seen as that of any program."""
    other, its_engine, worker = 201, 202, 203

    def tree(cpu_s):
        return {
            1: (0, "init", 0, 0),
            OWN: (1, "servebench", 0, 0),
            GUARD: (OWN, "guard", 0, 0),
            ENGINE: (GUARD, "llama-server", cpu_s, 0),
            other: (OWN, "guard", 0, 0),
            its_engine: (other, "llama-server", 2 * cpu_s, 0),
            worker: (OWN, "load", cpu_s / 2, 0),
        }

    sessions = {GUARD: GUARD, ENGINE: GUARD, other: other, its_engine: other}
    found = looked(tmp_path, tree(1), tree(1.4), sessions=sessions, engine=ENGINE)
    assert found["own_cores", ""] == pytest.approx(0.4 + 0.2)
    assert found["foreign_cores", f'pid="{its_engine}",program="llama-server"'] == pytest.approx(0.8)


def test_children_that_came_and_went_count_for_their_parent(tmp_path):
    before = {1: (0, "init", 0, 0), OWN: (1, "servebench", 0, 0), 50: (1, "make", 1, 5), 51: (50, "cc1", 3, 0)}
    # cc1 had 3 s when it was last seen; it and others that nobody saw used 4.5 s
    after = {1: (0, "init", 0, 0), OWN: (1, "servebench", 0, 0), 50: (1, "make", 1.1, 9.5)}
    found = looked(tmp_path, before, after, seconds=1.0)
    assert found["foreign_cores", 'pid="50",program="make"'] == pytest.approx(1.6)


def test_a_pid_that_is_used_again_is_another_process(tmp_path):
    before = {OWN: (1, "servebench", 0, 0), 50: (1, "old", 90, 0)}
    after = {OWN: (1, "servebench", 0, 0), 50: (1, "new", 0.5, 0)}
    assert looked(tmp_path, before, after, began={50: 99})["foreign_cores", 'pid="50",program="new"'] == pytest.approx(
        0.5
    )


def test_what_nobody_visible_used_is_unseen_and_steal_time_is_told(tmp_path):
    before = {OWN: (1, "servebench", 0, 0), 2: (0, "kthreadd", 0, 0), 3: (2, "kworker", 0, 0)}
    after = {OWN: (1, "servebench", 0.5, 0), 2: (0, "kthreadd", 0, 0), 3: (2, "kworker", 0.2, 0)}
    found = looked(tmp_path, before, after, cpus=(((10, 1), (10, 0)), ((10.7, 1.3), (10.8, 0))))
    assert found["unseen_cores", ""] == pytest.approx(1.5 - 0.5 - 0.2)
    assert found["steal_cores", ""] == pytest.approx(0.3)
    assert found["others_cores", ""] == pytest.approx(0.8)


def test_small_processes_are_added_up_and_looks_too_near_say_nothing(tmp_path):
    def tree(cpu_s):
        return {OWN: (1, "servebench", 0, 0)} | dict.fromkeys(range(500, 510), (1, "tiny", cpu_s, 0))

    looks = use(tmp_path)
    write_proc(tmp_path, tree(0))
    looks.look(0.0)
    write_proc(tmp_path, tree(0.01))
    assert looks.look(0.1) == {}
    found = looks.look(1.0)
    assert found["foreign_cores", ""] == found["others_cores", ""] == pytest.approx(0.1)
    assert len(found) == 3


@pytest.mark.parametrize(("used_s", "words"), [(0.45, "0.9 of 2 cores (python (pid 900) 0.9)"), (0.1, None)])
def test_a_line_before_a_study(tmp_path, used_s, words):
    looks, times = use(tmp_path), iter((0.0, 0.5))
    write_proc(tmp_path, {OWN: (1, "servebench", 0, 0), HOG: (1, "python", 1, 0)})
    after = {OWN: (1, "servebench", 0.4, 0), HOG: (1, "python", 1 + used_s, 0)}
    found = others_now(looks, now=lambda: next(times), sleep=lambda _: write_proc(tmp_path, after) and None)
    assert found == words


def test_what_other_virtual_machines_take_may_be_left_aside(tmp_path):
    """They do not end because servebench waits."""

    def others(stolen):
        looks, times = use(tmp_path), iter((0.0, 0.5))
        write_proc(tmp_path, {OWN: (1, "servebench", 0, 0)}, cpus=[(1, 1), (1, 1)])
        later = partial(write_proc, tmp_path, {OWN: (1, "servebench", 0, 0)}, cpus=[(1, 1.4), (1, 1.4)])
        return others_now(looks, stolen=stolen, now=lambda: next(times), sleep=lambda _: later() and None)

    assert others(stolen=True) == "1.6 of 2 cores (other virtual machines 1.6)"
    assert others(stolen=False) is None


def test_a_hostile_name_stays_one_word_of_a_label(tmp_path):
    write_proc(tmp_path, {7: (1, 'a) S "\x1b[2J\\', 0, 0)})
    assert read_tasks(tmp_path)[7].program == "a) S ???[2J?".replace("???", "??")


def test_what_cannot_be_read_is_absent(tmp_path):
    (tmp_path / "self").mkdir()
    write_proc(tmp_path, {OWN: (1, "servebench", 0, 0)})
    source = MachineSource(subject(), tmp_path, tmp_path / "no cpus")
    assert "no /proc" in source.open()
    (tmp_path / "self" / "stat").touch()
    assert source.open() is None
    assert set(source.sample()) == {("machine_cores", CLIENT_ONLY)}


def test_pressure_heat_and_clock(tmp_path, monkeypatch):
    proc, cpus = tmp_path / "proc", tmp_path / "cpu"
    for number in os.sched_getaffinity(0):
        (cpus / f"cpu{number}" / "cpufreq").mkdir(parents=True)
        (cpus / f"cpu{number}" / "cpufreq" / "scaling_cur_freq").write_text("2400000\n")
        (cpus / f"cpu{number}" / "thermal_throttle").mkdir()
    first = cpus / f"cpu{min(os.sched_getaffinity(0))}" / "thermal_throttle" / "core_throttle_count"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "stat").touch()
    (proc / "pressure").mkdir()
    write_proc(proc, {OWN: (1, "servebench", 0, 0)})
    times = iter((10.0, 12.0))
    monkeypatch.setattr("servebench.telemetry.machine.time.monotonic", lambda: next(times))
    source = MachineSource(subject(pid=OWN), proc, cpus)
    source.open()
    for total, count in ((1_000_000, 4), (2_500_000, 6)):
        (proc / "pressure" / "cpu").write_text(f"some avg10=1.00 avg60=0.00 avg300=0.00 total={total}\nfull total=1\n")
        first.write_text(f"{count}\n")
        found = source.sample()
    assert found["cpu_pressure", ""] == pytest.approx(0.75)
    assert found["cpu_throttles", ""] == 2
    assert found["cpu_mhz", ""] == 2400
    assert {one.name for one in source.readings(1, found)} >= {"machine_cores", "own_cores", "cpu_pressure"}


def test_the_owner_of_a_local_port_is_the_engine():
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); s.accept()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        try:
            port = int(server.stdout.readline())
            assert engine_pid(subject(root_url=f"http://127.0.0.1:{port}").running) == (server.pid, None)
        finally:
            server.kill()
    assert engine_pid(subject().running) == (None, None)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        pid, reason = engine_pid(subject(root_url=f"http://localhost:{unused.getsockname()[1]}").running)
    assert pid is None
    assert "unknown" in reason


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_busy_process_of_this_machine_is_seen():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as hog:
        try:
            source = MachineSource(subject())
            assert source.open() is None
            # a child of this process would be ours
            source._use.own = 0
            wait_until(lambda: any(f'pid="{hog.pid}",program="python' in labels for _, labels in source.sample()))
        finally:
            hog.kill()
