"""One command at a time works on a study, and the lock of one that was killed is nobody's."""

import subprocess
import sys

import pytest

from servebench.store import hold
from servebench.store.hold import holding
from servebench.store.layout import StudyFolder
from servebench.util.errors import StoreError

HOLDER = """
import sys, time
from pathlib import Path
from servebench.store.hold import holding
from servebench.store.layout import StudyFolder
with holding(StudyFolder(Path(sys.argv[1]))) as ours:
    print(ours, flush=True)
    time.sleep(9999)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_study_is_held_by_one(tmp_path, holder, monkeypatch):
    """A second one is told so in bounded time, and leaves no file."""
    monkeypatch.setattr(hold, "RELEASED_S", 0.2)
    with holding(StudyFolder(tmp_path)) as ours:
        assert not ours
    assert list(tmp_path.iterdir()) == []


def test_kill_9_lets_go(tmp_path, holder, monkeypatch):
    """Also when the killed process takes a little to be gone."""
    monkeypatch.setattr(hold, "RELEASED_S", 300.0)
    holder.kill()
    with holding(StudyFolder(tmp_path)) as ours:
        assert ours
    with holding(StudyFolder(tmp_path)) as again:
        assert again


def test_a_folder_that_is_gone(tmp_path):
    with pytest.raises(StoreError, match="cannot be opened: no such file"), holding(StudyFolder(tmp_path / "no")):
        pass
