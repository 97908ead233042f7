"""Fixtures that many tests use; the code behind them is in tests/support."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.fixtures import endpoint, serve, servebench, started  # noqa: F401
from support.studies import write_simulated_study

# a test suite that a shell runs in the background starts with Ctrl-C ignored, and would pass that on to what it starts
signal.signal(signal.SIGINT, signal.default_int_handler)

# no property test fails because the machine is slow, or by chance: each has the same examples in each run
settings.register_profile("servebench", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("servebench")

# no test asks the hub of the network: a refused connection says nothing of a model
os.environ.setdefault("HF_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture(scope="session", autouse=True)
def _commands_on_path(tmp_path_factory):
    """Printed commands begin with `servebench`, whichever way the suite was started."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("servebench", "mlflow"):
        (folder / name).symlink_to(Path(sysconfig.get_path("scripts"), name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Path]:
    return partial(write_simulated_study, tmp_path / "outputs")


@pytest.fixture
def run_main(tmp_path, monkeypatch, capfd):
    """Run the command in this process, which saves the second of imports of a new process. It must end with `code`, if that is
    given."""
    from servebench.cli.main import main

    def run(*words, code=None):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["servebench", *words])
        capfd.readouterr()
        # the command wraps the streams of its process and sets its hook: a test leaves neither behind
        before = sys.stdout, sys.stderr, sys.excepthook
        try:
            found = main()
        finally:
            sys.stdout, sys.stderr, sys.excepthook = before
        shown = capfd.readouterr()
        assert code is None or found == code, shown
        return subprocess.CompletedProcess(words, found, shown.out, shown.err)

    return run
