import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from servebench.contracts.settings import LaunchSettings
from servebench.engine.launchers.process import ProcessLauncher
from servebench.engine.supervisor import readiness
from servebench.engine.supervisor.ports import accepts_connections, port_problem
from servebench.util.errors import EngineError
from support.waiting import has_ended, wait_ended, wait_until, words_of

SETTINGS = LaunchSettings(name="process")


def family(running):
    guard = running.guarded.process.pid
    return [guard, *(child.pid for child in psutil.Process(guard).children(recursive=True))]


def child_pid(path):
    return int(path.read_text())


def command_of(process):
    return " ".join(words_of(process))


def no_engine_left():
    return not [child for child in psutil.Process().children(recursive=True) if "fake_engine" in command_of(child)]


def test_an_engine_is_ready_after_its_first_token_and_leaves_nothing_behind(launch, log, fake, context_of):
    """The phases come in order, the pid is the engine's, and after `stop` neither process nor port is held."""
    context = context_of(stop_timeout_s=300.0)
    running = launch(fake("--log", "loaded 3 weights", "--listen-after", "0.2", "--version", "1.2"), context)
    pids = family(running)
    assert [phase.name for phase in running.phases] == [
        "spawned",
        "weights_loaded",
        "listening",
        "healthy",
        "first_token",
    ]
    stamps = [running.started_ns, *(phase.ended_ns for phase in running.phases), time.time_ns()]
    assert stamps == sorted(stamps)
    assert running.pid in pids
    assert (running.base_url, running.model) == (f"http://127.0.0.1:{context.port}/v1", "m")
    assert running.version == "1.2"
    assert running.died() is None
    report = running.stop()
    assert report.stopped
    assert (report.forced, report.killed_pids, report.leftover) == (False, (), ())
    wait_ended(*pids)
    assert port_problem("127.0.0.1", context.port) is None
    assert running.stop() is report
    assert "loaded 3 weights" in log.read_text()


def test_health_is_not_readiness(launch, fake):
    """A server that returns 200 on /health while it loads is waited for until it generates content."""
    running = launch(fake("--rejects-first", "3"))
    ended = {phase.name: phase.ended_ns for phase in running.phases}
    assert ended["first_token"] > ended["healthy"]


def test_a_server_without_a_model_list_is_ready(launch, fake):
    assert launch(fake("--models", "")).died() is None


def test_a_server_without_the_route_of_the_load_says_which_one_to_set(launch, fake, context_of, monkeypatch):
    """Before the run: each of its requests would have failed."""
    monkeypatch.setattr(readiness, "REFUSAL_S", 0.1)
    with pytest.raises(EngineError) as error:
        launch(fake("--only-completions"), context_of(ready_timeout_s=1e6))
    assert "no such path" in str(error.value)
    assert "set workload.api=completions" in str(error.value)
    assert error.value.kind == "config"
    completions = replace(context_of(ready_timeout_s=1e6), api="completions")
    assert launch(fake("--only-completions"), completions).died() is None


def test_a_server_without_the_health_path_is_ready_when_it_generates(launch, fake):
    """A version that has no such path must not be waited for until the deadline; one that loads still is."""
    engine = fake("--rejects-first", "2")
    engine.health_path = "/no/such/path"
    running = launch(engine)
    assert {"healthy", "first_token"} <= {phase.name for phase in running.phases}
    assert running.died() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--listen-after", "60"), ["127.0.0.1:"]),
        (("--healthy-after", "60"), ["/health", "503"]),
        (("--generates-after", "60"), ["503", "Loading model"]),
        (("--hangs",), ["first_token"]),
        (("--says", ""), ["/v1/chat/completions"]),
        (("--models", "other"), ["other", "not m"]),
    ],
    ids=["silent", "unhealthy", "loading", "hanging", "empty", "another model"],
)
def test_an_engine_that_never_serves_fails_at_the_deadline(launch, options, words, fake, context_of):
    """The error names the timeout, the last problem and the last log line; nothing is left running."""
    for ready_s in (1.0, 8.0, 64.0):  # a slow machine may not get as far within a second
        began = time.monotonic()
        with pytest.raises(EngineError) as error:
            launch(fake("--log", "still here", *options), context_of(ready_timeout_s=ready_s))
        assert time.monotonic() - began >= ready_s
        if all(word in str(error.value) for word in words):
            break
    assert error.value.kind == "not_ready"
    for word in ["fake", f"{ready_s:g} s (engine.ready_timeout_s)", "still here", *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    wait_until(no_engine_left)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (("--dies-after", "0", "--exit-code", "3"), "died", ["exit code 3", "one two"]),
        (
            ("--dies-after", "0.3", "--exit-code", "1", "--log", "CUDA out of memory"),
            "out_of_memory",
            ["exit code 1", "lower engine.max_model_len"],
        ),
    ],
)
def test_a_death_is_reported_before_the_deadline(launch, options, kind, words, fake, context_of):
    with pytest.raises(EngineError) as error:
        launch(fake("--log", "one two", *options), context_of(ready_timeout_s=1e6))
    assert error.value.kind == kind
    for word in words:
        assert word in str(error.value)


def test_a_command_that_does_not_exist(launch, fake):
    with pytest.raises(EngineError, match=r"exit code 127.*cannot start no-such-engine: No such file"):
        launch(fake(argv=("no-such-engine",)))


def test_log_lines_of_an_earlier_start_are_ignored(launch, log, fake):
    """The log is appended to; phases and hints of an earlier start do not count."""
    log.write_text("loaded 9 weights\nCUDA out of memory\n")
    with pytest.raises(EngineError) as error:
        launch(fake("--log", "new words", "--dies-after", "0", "--exit-code", "2"))
    assert error.value.kind == "died"
    assert "last log line: new words" in str(error.value)
    running = launch(fake())
    assert "weights_loaded" not in [phase.name for phase in running.phases]


def test_a_relative_log_path_is_relative_to_servebench(launch, log, monkeypatch, tmp_path, fake, context_of):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    running = ProcessLauncher().launch(
        fake("--log", "hello", cwd=tmp_path / "elsewhere"), context_of(), SETTINGS,
        log_path=Path(log.name), say=lambda _: None,
    )  # fmt: skip
    running.stop()
    assert "hello" in log.read_text()


def test_an_engine_killed_during_its_start(launch, fake, context_of):

    def engines():
        below = psutil.Process().children(recursive=True)
        return [one for one in below if "fake_engine" in command_of(one) and "guard.py" not in command_of(one)]

    def kill():
        wait_until(engines)[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(EngineError, match="killed by SIGKILL"):
        launch(fake("--listen-after", "9999"))
    killer.join()
    wait_until(no_engine_left)


def test_an_engine_killed_while_it_serves(launch, fake):
    running = launch(fake())
    os.kill(running.pid, signal.SIGKILL)
    wait_ended(running.pid)
    assert "SIGKILL" in (wait_until(running.died) or "")
    report = running.stop()
    assert (report.forced, report.leftover) == (False, ())


def test_children_of_a_dead_engine_are_killed(launch, tmp_path, fake):
    running = launch(fake("--child-session", "--pids", str(tmp_path / "child")))
    child = child_pid(tmp_path / "child")
    os.kill(running.pid, signal.SIGKILL)
    wait_ended(child)
    assert running.stop().killed_pids == (child,)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["--child", "--child-session"])
def test_a_child_that_ignores_sigterm_is_killed_and_reported(launch, tmp_path, kind, fake):
    """In the engine's group or in a session of its own: it is killed after the deadline, and the report lists it."""
    running = launch(fake(kind, "--pids", str(tmp_path / "child")))
    child = child_pid(tmp_path / "child")
    report = running.stop()
    assert has_ended(child)
    assert (report.stopped, report.forced, report.killed_pids, report.leftover) == (True, True, (child,), ())
    assert report.seconds >= 0.5


def test_an_engine_that_ignores_sigterm_is_killed(launch, fake):
    running = launch(fake("--ignores-term"))
    report = running.stop()
    assert (report.stopped, report.forced, report.killed_pids) == (True, True, (running.pid,))
    assert report.seconds >= 0.5


def test_a_used_port_is_reported_with_its_owner(launch, fake, context_of):
    """Before anything starts: host, port, and the pid and name of the process."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError) as error:
            launch(fake(), context_of(port))
        problems = ProcessLauncher().check(fake(), context_of(port, port=port), SETTINGS)
    assert error.value.kind == "port_in_use"
    for part in (f"engine.port={port}", f"127.0.0.1:{port}", f"pid {os.getpid()} ("):
        assert part in str(error.value)
    assert problems == [str(error.value)]
    wait_until(no_engine_left)


def test_a_port_taken_by_another_process_during_the_start(launch, fake, context_of):
    """Another server on our port is not measured: the process that listens must be the engine's."""
    context = context_of()
    taken = socket.create_server(("127.0.0.1", context.port))
    taken.close()
    thief = threading.Timer(0.2, lambda: thieves.append(socket.create_server(("127.0.0.1", context.port))))
    thieves = []
    thief.start()
    try:
        with pytest.raises(EngineError) as error:
            launch(fake("--listen-after", "9999"), context)
    finally:
        thief.join()
        thieves[0].close()
    assert error.value.kind == "port_in_use"
    assert f"by pid {os.getpid()}" in str(error.value)
    wait_until(no_engine_left)


def test_a_host_of_another_machine(fake, context_of):
    (problem,) = ProcessLauncher().check(fake(), context_of(host="203.0.113.7"), SETTINGS)
    assert problem.startswith("engine.host=203.0.113.7: ")
    assert "in use" not in problem


def test_ctrl_c_does_not_reach_the_engine(launch, fake):
    """It has a group and session of its own, so a terminal's SIGINT to the foreground group does not reach it."""
    running = launch(fake())
    assert os.getpgid(running.pid) != os.getpgid(0)
    assert os.getsid(running.pid) != os.getsid(0)


def test_the_engine_inherits_the_environment_but_no_descriptors(launch, fake, context_of):
    """It has the variables of servebench and of the command, but no file that servebench or the guard has open."""
    running = launch(fake(), context_of(env={"SERVEBENCH_TEST_WORD": "x"}))
    environment = psutil.Process(running.pid).environ()
    assert environment["SERVEBENCH_TEST_WORD"] == "x"
    assert environment["PATH"] == os.environ["PATH"]
    links = []
    for path in Path(f"/proc/{running.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the engine opens and closes files meanwhile
            links.append(str(path.readlink()))
    assert links
    assert not [link for link in links if link.startswith("pipe:")]


@pytest.mark.parametrize("after_s", [0.02, 0.06, 0.3])
def test_ctrl_c_while_waiting_leaves_nothing(launch, after_s, fake):
    """KeyboardInterrupt is raised at any moment, and the engine is gone by then."""
    timer = threading.Timer(after_s, lambda: os.kill(os.getpid(), signal.SIGINT))

    def wait_for_ever():
        timer.start()
        launch(fake("--listen-after", "9999"))

    with pytest.raises(KeyboardInterrupt):
        wait_for_ever()
    timer.join()
    wait_until(no_engine_left)


def test_an_engine_that_has_served_nobody_does_not_get_the_time_of_one_that_serves(launch, fake, context_of):
    """vLLM does not hear a signal before it has loaded; it would be waited for an hour."""
    context = context_of(stop_timeout_s=3600.0, ready_timeout_s=1.0)
    with pytest.raises(EngineError):
        launch(fake("--ignores-term", "--listen-after", "9999"), context)
    wait_until(no_engine_left)


def test_ctrl_c_while_stopping_waits(launch, fake):
    """A Ctrl-C during the stop is delivered when the engine is gone."""
    running = launch(fake("--ignores-term"))

    def interrupt():
        # the stop has begun, and takes half a second
        wait_until(lambda: signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        running.stop()
    thread.join()
    assert has_ended(running.pid)
    assert running.stop().killed_pids == (running.pid,)


def test_an_engine_does_not_outlive_its_guard(launch, tmp_path, fake):
    """kill -9 of the guard ends the engine; the rest of its session is killed by the next check."""
    running = launch(fake("--child", "--pids", str(tmp_path / "child")))
    running.guarded.process.kill()
    wait_ended(running.pid)
    assert "-9" in (wait_until(running.died) or "")
    wait_ended(child_pid(tmp_path / "child"))
    assert running.stop().leftover == ()


BENCH = """
import os, sys, time
from dataclasses import replace
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
from conftest import FakeEngine, make_context
from servebench.contracts.settings import LaunchSettings
from servebench.engine.launchers.process import ProcessLauncher
engine = FakeEngine(*sys.argv[4:])
running = ProcessLauncher().launch(
    engine, make_context(int(sys.argv[2])), LaunchSettings(name="process"), log_path=Path(sys.argv[3]), say=print
)
if os.fork() == 0:
    time.sleep(9999)  # holds every pipe open, as a worker that was forked would
    os._exit(0)
print(running.pid, flush=True)
time.sleep(9999)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("stubborn", [(), ("--ignores-term",)])
def test_an_engine_does_not_outlive_servebench(log, tmp_path, stubborn, stopped, context_of):
    """After kill -9 of servebench, with a forked child of it still alive, the engine, its child and its port are gone, even if
    the guard was stopped before."""
    context = context_of()
    options = ["--child-session", "--pids", str(tmp_path / "child"), *stubborn]
    here = str(Path(__file__).parents[1])
    words = [sys.executable, "-c", BENCH, here, str(context.port), str(log), *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as bench:
        try:
            engine = int(bench.stdout.readline())
            child = child_pid(tmp_path / "child")
            guard = psutil.Process(engine).parent()
            if stopped:
                guard.suspend()
            bench.kill()
            wait_ended(engine)
            wait_ended(child)
            assert not accepts_connections("127.0.0.1", context.port)
        finally:
            os.killpg(bench.pid, signal.SIGKILL)
            if stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    guard.resume()
