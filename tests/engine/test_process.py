from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from servebench.contracts.engine import Engine, LaunchContext, RunningEngine
from servebench.contracts.settings import LaunchSettings
from servebench.engine.adapters.openai import OpenAiEngine
from servebench.engine.launchers.process import LaunchedEngine, ProcessLauncher
from servebench.engine.supervisor.ports import accepts_connections, port_problem
from servebench.util.errors import EngineError

Fake = Callable[..., Engine]
Launch = Callable[..., RunningEngine]
ContextOf = Callable[..., LaunchContext]
Gone = Callable[..., bool]

SETTINGS = LaunchSettings(name="process")


def family(running: RunningEngine) -> list[int]:
    assert isinstance(running, LaunchedEngine)
    guard = running.started.guarded.process.pid
    return [guard, *(child.pid for child in psutil.Process(guard).children(recursive=True))]


def the_child(path: Path) -> int:
    return int(path.read_text())


def no_engine_left() -> bool:
    """Whether no process of ours is below this one."""
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        children = psutil.Process().children(recursive=True)
        if not [child for child in children if "fake_engine" in " ".join(child.cmdline())]:
            return True
        time.sleep(0.02)
    return False


def test_an_engine_is_ready_once_it_generated_and_leaves_nothing(
    launch: Launch, log: Path, fake: Fake, context_of: ContextOf, gone: Gone
) -> None:
    """The phases come in order, the pid is the engine's, and after `stop` neither process nor port is held."""
    context = context_of()
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
    assert report.seconds < 0.5
    assert all(gone(pid) for pid in pids)
    assert port_problem("127.0.0.1", context.port) is None
    assert running.stop() is report
    assert "loaded 3 weights" in log.read_text()


def test_health_is_not_readiness(launch: Launch, fake: Fake) -> None:
    """A server that says 200 on /health while it loads is waited for until it gives content."""
    running = launch(fake("--generates-after", "0.8"))
    ended = {phase.name: phase.ended_ns for phase in running.phases}
    assert ended["first_token"] - ended["healthy"] > 0.3e9


def test_a_server_without_chat_is_ready_by_completions(launch: Launch, fake: Fake) -> None:
    """404 on the chat route is not the end: the completions route may do."""
    assert launch(fake("--only-completions")).died() is None


def test_a_server_without_a_model_list_is_ready_all_the_same(launch: Launch, fake: Fake) -> None:
    """Some engines list no model, or have no such path."""
    assert launch(fake("--models", "")).died() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--listen-after", "60"), ["nobody listens on 127.0.0.1:"]),
        (("--healthy-after", "60"), ["/health answers 503"]),
        (("--generates-after", "60"), ["answers 503", "Loading model"]),
        (("--hangs",), ["a first request is not answered"]),
        (("--says", ""), ["without generating anything"]),
        (("--models", "other"), ["it serves other, not m"]),
    ],
    ids=["silent", "unhealthy", "loading", "hanging", "empty", "another model"],
)
def test_an_engine_that_never_serves_ends_at_the_deadline(
    launch: Launch, options: tuple[str, ...], words: list[str], fake: Fake, context_of: ContextOf
) -> None:
    """The error says how long was waited, the last thing seen and the last line of the log; nothing is left."""
    began = time.monotonic()
    with pytest.raises(EngineError) as error:
        launch(fake("--log", "still here", *options), context_of(ready_timeout_s=1.0))
    assert 1.0 <= time.monotonic() - began < 2.5
    assert error.value.kind == "not_ready"
    for word in ["fake was not ready within 1 s (engine.ready_timeout_s)", "still here", *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.log_tail == ("still here",)
    assert no_engine_left()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (("--dies-after", "0", "--exit-code", "3"), "died", ["exit code 3", "last words: one two"]),
        (
            ("--dies-after", "0.3", "--exit-code", "1", "--log", "CUDA out of memory"),
            "out_of_memory",
            ["exit code 1", "lower engine.max_model_len"],
        ),
    ],
)
def test_an_engine_that_dies_is_told_at_once(
    launch: Launch, options: tuple[str, ...], kind: str, words: list[str], fake: Fake, context_of: ContextOf
) -> None:
    """Not at the deadline: with the exit code, its last words, and what they mean."""
    began = time.monotonic()
    with pytest.raises(EngineError) as error:
        launch(fake("--log", "one two", *options), context_of(ready_timeout_s=30.0))
    assert time.monotonic() - began < 3
    assert error.value.kind == kind
    for word in words:
        assert word in str(error.value)
    assert error.value.log_tail[0] == "one two"


def test_a_command_that_does_not_exist(launch: Launch, fake: Fake) -> None:
    """One line names the command."""
    with pytest.raises(EngineError, match=r"exit code 127.*cannot start no-such-engine: No such file"):
        launch(fake(argv=("no-such-engine",)))


def test_the_words_of_an_earlier_start_tell_nothing_of_this_one(launch: Launch, log: Path, fake: Fake) -> None:
    """The log is appended to; phases and hints of an earlier start are not taken for this one's."""
    log.write_text("loaded 9 weights\nCUDA out of memory\n")
    with pytest.raises(EngineError) as error:
        launch(fake("--log", "new words", "--dies-after", "0", "--exit-code", "2"))
    assert error.value.kind == "died"
    assert error.value.log_tail == ("new words",)
    running = launch(fake())
    assert "weights_loaded" not in [phase.name for phase in running.phases]


def test_a_relative_log_is_not_below_the_engines_folder(
    launch: Launch, log: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake: Fake, context_of: ContextOf
) -> None:
    """A command with a folder of its own still logs where servebench said."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    running = ProcessLauncher().launch(
        fake("--log", "hello", cwd=tmp_path / "elsewhere"), context_of(), SETTINGS,
        log_path=Path(log.name), say=lambda _: None,
    )  # fmt: skip
    running.stop()
    assert "hello" in log.read_text()


def test_an_engine_killed_while_waited_for(launch: Launch, fake: Fake, context_of: ContextOf) -> None:
    """kill -9 of the engine during its start is told at once, as a signal."""

    def kill() -> None:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            for child in psutil.Process().children(recursive=True):
                if "fake_engine" in " ".join(child.cmdline()) and "guard.py" not in " ".join(child.cmdline()):
                    time.sleep(0.2)
                    child.kill()
                    return
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(EngineError, match="killed by SIGKILL"):
        launch(fake("--listen-after", "30"), context_of(ready_timeout_s=20.0))
    killer.join()
    assert no_engine_left()


def test_an_engine_killed_while_it_serves(launch: Launch, fake: Fake, gone: Gone) -> None:
    """`died` tells it in one line, and `stop` is then no news."""
    running = launch(fake())
    assert running.pid is not None
    os.kill(running.pid, signal.SIGKILL)
    assert gone(running.pid)
    deadline = time.monotonic() + 2
    while running.died() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    told = running.died()
    assert told is not None
    assert told.startswith("fake died: it was killed by SIGKILL")
    report = running.stop()
    assert (report.forced, report.leftover) == (False, ())


def test_what_an_engine_leaves_when_it_dies_is_ended(launch: Launch, tmp_path: Path, fake: Fake, gone: Gone) -> None:
    """A stubborn child in a session of its own does not outlive an engine that was killed."""
    running = launch(fake("--child-session", "--pids", str(tmp_path / "child")))
    child = the_child(tmp_path / "child")
    assert running.pid is not None
    os.kill(running.pid, signal.SIGKILL)
    assert gone(child)
    assert running.stop().killed_pids == (child,)


@pytest.mark.parametrize("kind", ["--child", "--child-session"])
def test_a_child_that_ignores_sigterm_is_killed_and_named(
    launch: Launch, tmp_path: Path, kind: str, fake: Fake, gone: Gone
) -> None:
    """In the engine's group or in a session of its own: after the deadline it is killed, and the report says so."""
    running = launch(fake(kind, "--pids", str(tmp_path / "child")))
    child = the_child(tmp_path / "child")
    report = running.stop()
    assert gone(child, 0.1)
    assert (report.stopped, report.forced, report.killed_pids, report.leftover) == (True, True, (child,), ())
    assert 0.5 <= report.seconds < 2


def test_an_engine_that_ignores_sigterm_is_killed(launch: Launch, fake: Fake) -> None:
    """After `stop_timeout_s` it is killed, and the report says so."""
    running = launch(fake("--ignores-term"))
    report = running.stop()
    assert (report.stopped, report.forced, report.killed_pids) == (True, True, (running.pid,))
    assert 0.5 <= report.seconds < 2


def test_a_taken_port_is_named_with_its_owner(launch: Launch, fake: Fake, context_of: ContextOf) -> None:
    """Before anything starts: host, port, pid and name of who has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError) as error:
            launch(fake(), context_of(port))
        faults = ProcessLauncher().check(fake(), context_of(port, port=port), SETTINGS)
    assert error.value.kind == "port_in_use"
    assert f"port 127.0.0.1:{port} (engine.port) is in use by pid {os.getpid()} (" in str(error.value)
    assert faults == [str(error.value)]
    assert no_engine_left()


def test_a_port_taken_by_another_while_the_engine_starts(launch: Launch, fake: Fake, context_of: ContextOf) -> None:
    """Another server that answers on our port is not measured: who listens must be a process of ours."""
    context = context_of()
    taken = socket.create_server(("127.0.0.1", context.port))
    taken.close()
    thief = threading.Timer(0.2, lambda: thieves.append(socket.create_server(("127.0.0.1", context.port))))
    thieves: list[socket.socket] = []
    thief.start()
    try:
        with pytest.raises(EngineError) as error:
            launch(fake("--listen-after", "30"), context)
    finally:
        thief.join()
        thieves[0].close()
    assert error.value.kind == "port_in_use"
    assert f"was taken by pid {os.getpid()}" in str(error.value)
    assert no_engine_left()


def test_an_engine_that_others_start_is_refused(context_of: ContextOf) -> None:
    """engine=openai with launch=process is a fault that names the way out."""
    (fault,) = ProcessLauncher().check(OpenAiEngine(), context_of(), SETTINGS)
    assert "launch=attach" in fault


def test_a_host_that_is_not_ours(fake: Fake, context_of: ContextOf) -> None:
    """An address of another machine is told as such, not as a port in use."""
    (fault,) = ProcessLauncher().check(fake(), context_of(host="203.0.113.7"), SETTINGS)
    assert fault.startswith("engine.host=203.0.113.7: cannot listen there")


def test_ctrl_c_does_not_reach_the_engine(launch: Launch, fake: Fake) -> None:
    """Its group and session are not servebench's, so a terminal's SIGINT to the foreground group passes it by."""
    running = launch(fake())
    assert running.pid is not None
    assert os.getpgid(running.pid) != os.getpgid(0)
    assert os.getsid(running.pid) != os.getsid(0)


def test_the_engine_gets_the_environment_and_no_descriptor_of_ours(
    launch: Launch, fake: Fake, context_of: ContextOf
) -> None:
    """The parent's variables and the command's are there; files that servebench or the guard has open are not."""
    running = launch(fake(), context_of(env={"SERVEBENCH_TEST_WORD": "x"}))
    assert running.pid is not None
    environment = psutil.Process(running.pid).environ()
    assert environment["SERVEBENCH_TEST_WORD"] == "x"
    assert environment["PATH"] == os.environ["PATH"]
    links = [str(path.readlink()) for path in Path(f"/proc/{running.pid}/fd").iterdir()]
    assert not [link for link in links if link.startswith("pipe:")]


@pytest.mark.parametrize("after_s", [0.02, 0.06, 0.3])
def test_ctrl_c_while_waiting_leaves_nothing(launch: Launch, after_s: float, fake: Fake) -> None:
    """Whenever it comes, KeyboardInterrupt gets through, and the engine is gone by then."""
    timer = threading.Timer(after_s, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        launch(fake("--listen-after", "30"))
    timer.join()
    assert no_engine_left()


def test_ctrl_c_while_stopping_waits(launch: Launch, fake: Fake, gone: Gone) -> None:
    """An impatient second Ctrl-C cannot cut the stop short; it is delivered when the engine is gone."""
    running = launch(fake("--ignores-term"))
    assert running.pid is not None
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        running.stop()
    assert gone(running.pid, 0.1)
    assert running.stop().killed_pids == (running.pid,)


def test_an_engine_does_not_outlive_its_guard(launch: Launch, tmp_path: Path, fake: Fake, gone: Gone) -> None:
    """kill -9 of the guard ends the engine with it, and the rest of its session by the next look."""
    running = launch(fake("--child", "--pids", str(tmp_path / "child")))
    assert isinstance(running, LaunchedEngine)
    assert running.pid is not None
    running.started.guarded.process.kill()
    assert gone(running.pid)
    told = running.died()
    assert told is not None
    assert "its guard ended with -9" in told
    assert gone(the_child(tmp_path / "child"))
    assert running.stop().leftover == ()


BENCH = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from conftest import FakeEngine, make_context
from servebench.contracts.settings import LaunchSettings
from servebench.engine.launchers.process import ProcessLauncher
engine = FakeEngine(*sys.argv[4:])
running = ProcessLauncher().launch(
    engine, make_context(int(sys.argv[2])), LaunchSettings(name="process"), log_path=Path(sys.argv[3]), say=print
)
if os.fork() == 0:
    time.sleep(8)  # holds every pipe open, as a worker that was forked would
    os._exit(0)
print(running.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("stubborn", [(), ("--ignores-term",)])
def test_an_engine_does_not_outlive_servebench(
    log: Path, tmp_path: Path, stubborn: tuple[str, ...], context_of: ContextOf, gone: Gone
) -> None:
    """kill -9 of servebench, though a forked child of its lives on: engine, stubborn child and port are gone in a bounded
    time."""
    context = context_of()
    options = ["--child-session", "--pids", str(tmp_path / "child"), *stubborn]
    here = str(Path(__file__).parent)
    words = [sys.executable, "-c", BENCH, here, str(context.port), str(log), *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as bench:
        try:
            assert bench.stdout is not None
            engine = int(bench.stdout.readline())
            child = the_child(tmp_path / "child")
            bench.kill()
            assert gone(engine)
            assert gone(child)
            assert not accepts_connections("127.0.0.1", context.port)
        finally:
            os.killpg(bench.pid, signal.SIGKILL)
