"""The command, in this process or in another."""

import sys
from dataclasses import dataclass
from functools import partial

import pytest

from support.commands import run_servebench


@dataclass(frozen=True)
class Completed:
    """How a command ended that ran in this process."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run_main(tmp_path, monkeypatch, capfd):
    """Run the command in this process, which saves the second of imports of a new process."""
    from servebench.cli.main import main

    def run(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["servebench", *words])
        capfd.readouterr()
        code = main()
        shown = capfd.readouterr()
        return Completed(code, shown.out, shown.err)

    return run


@pytest.fixture
def servebench(tmp_path):
    """Run the command in a process of its own, in the test's folder."""
    return partial(run_servebench, tmp_path)
