import os
import subprocess
import sys
from pathlib import Path

import pytest

from servebench.contracts.engine import Command, Engine, LaunchContext, LogHint, PhaseMarker
from servebench.contracts.settings import EngineSettings, GpuSettings, LaunchSettings, ModelSettings
from servebench.engine.launchers.process import ProcessLauncher
from servebench.engine.supervisor.ports import accepts_connections
from support.servers import own_port
from support.waiting import wait_until

FAKE = Path(__file__).with_name("fake_engine.py")


class FakeEngine(Engine):
    """The misbehaving server, as an engine."""

    name = "fake"
    needs_gpu = False
    tokenize_path = "/tokenize"
    version_path = "/version"
    phases = (PhaseMarker("weights_loaded", r"loaded \d+ weights"), PhaseMarker("never", "this line never comes"))
    hints = (
        LogHint("CUDA out of memory", "out_of_memory", "lower engine.max_model_len"),
        LogHint("[Aa]ddress already in use", "port_in_use", "choose another engine.port"),
    )

    def __init__(self, *options, argv=None, cwd=None):
        self.options = options
        self.argv = argv or (sys.executable, "-S", str(FAKE))
        self.cwd = cwd

    def command(self, context):
        where = ("--host", context.engine.host, "--port", str(context.port))
        return Command(argv=(*self.argv, *where, *self.options), env=dict(context.engine.env), cwd=self.cwd)


def make_context(at=None, **engine):
    settings = {"name": "fake", "ready_timeout_s": 300.0, "stop_timeout_s": 0.5, **engine}
    return LaunchContext(
        engine=EngineSettings(**settings),
        model=ModelSettings(name="m"),
        gpu=GpuSettings(name="none"),
        port=at or own_port(),
        cache_dir=Path(os.devnull),
    )


@pytest.fixture(name="fake")
def fake_engine():
    """The misbehaving engine; call it with the options of `fake_engine.py`."""
    return FakeEngine


@pytest.fixture(name="context_of")
def context_maker():
    """Return a function that makes a launch context from a port (default: a free one) and engine settings."""
    return make_context


@pytest.fixture
def log(tmp_path):
    return tmp_path / "engine.log"


@pytest.fixture
def launch(log, started):
    """Return a function that launches with the process launcher; engines still running after the test are stopped."""

    def start(engine, context=None):
        running = ProcessLauncher().launch(
            engine, context or make_context(), LaunchSettings(name="process"), log_path=log, say=lambda _: None
        )
        started.append(running)
        return running

    return start


@pytest.fixture
def server():
    """Return a function that starts the misbehaving server outside servebench and returns its port."""
    processes = []

    def start(*options):
        port = own_port()
        processes.append(subprocess.Popen([sys.executable, "-S", str(FAKE), "--port", str(port), *options]))
        wait_until(lambda: accepts_connections("127.0.0.1", port), process=processes[-1])
        return port

    yield start
    for process in processes:
        process.kill()
        process.wait()
