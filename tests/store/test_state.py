"""How far a study and its runs are: always whole on disk, and honest about who is at work."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import count

import psutil
import pytest

from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.state import RunState, StudyState, read_run, read_study, write_run, write_study
from servebench.util.errors import StoreError
from support.waiting import wait_until

STUDY = StudyState(study_id="s", words=("a=1", "-m"), runs=("00_x", "01_y"), tracking={"name": "mlflow"})


def test_states_come_back_as_they_were(tmp_path):
    """Both files, with every field."""
    study, run = StudyFolder(tmp_path), RunFolder(tmp_path)
    state = RunState(
        run_id="s/00", title="x · y", overrides=("a=1",), status="failed", error="e", failure="died", ended_s=2.5
    )
    write_study(study, STUDY)
    write_run(run, state)
    assert read_study(study) == STUDY
    assert read_run(run) == state


def test_a_later_version_may_add_keys(tmp_path):
    """A key that this version does not know is left out."""
    write_study(StudyFolder(tmp_path), STUDY)
    facts = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**facts, "later": 1}))
    assert read_study(StudyFolder(tmp_path)) == STUDY


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"study_id": "s"}', '{"study_id": 1, "words": [], "runs": []}',
     '{"study_id": "s", "words": [], "runs": "abc"}', '{"study_id": "s", "words": [], "runs": [], "tracking": 5}',
     '{"study_id": "s", "words": [], "runs": [], "pid": "x"}', "\xff"],
)  # fmt: skip
def test_a_broken_state_is_one_line(tmp_path, text):
    """Whatever is in the file."""
    (tmp_path / "study.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StoreError, match=r"study\.json cannot be read: [^\n]+$"):
        read_study(StudyFolder(tmp_path))


def test_no_state_at_all(tmp_path):
    """The folder is named, and what it lacks."""
    with pytest.raises(StoreError, match=r"is no study: it has no study\.json$"):
        read_study(StudyFolder(tmp_path))
    with pytest.raises(StoreError, match=r"is no run: it has no run\.json$"):
        read_run(RunFolder(tmp_path))


def test_a_reader_never_sees_half_a_state(tmp_path):
    """Written again and again while it is read."""
    study = StudyFolder(tmp_path)
    write_study(study, STUDY)
    done = threading.Event()
    numbers = count()

    def write():
        while not done.is_set():
            write_study(study, replace(STUDY, words=("x" * 1000 * (next(numbers) % 7),)))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(200):
            read_study(study)
        wait_until(lambda: read_study(study) and next(numbers) > 60)
    finally:
        done.set()
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]


BOOT, TICKS = STUDY.process.split("+")


@pytest.mark.parametrize(
    ("changes", "at_work"),
    [
        ({}, True),
        ({"status": "finished"}, False),
        # the start of a process tells it from another one with its number
        ({"process": f"{BOOT}+{int(TICKS) - 1}"}, False),
        ({"process": f"{BOOT[::-1]}+{TICKS}"}, False),
        *(({"pid": pid}, False) for pid in (1, 999_999_999, -1, 2**70)),
    ],
)
def test_a_process_is_at_work_while_its_study_runs(changes, at_work):
    assert replace(STUDY, **changes).at_work() is at_work


def test_a_clock_that_is_set_stops_no_study(monkeypatch):
    """psutil computes the start of a process from the clock."""
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: 1000.0)
    assert STUDY.at_work()


def test_a_killed_process_is_not_at_work_even_before_it_is_reaped(tmp_path):
    """A zombie still has its pid and its time of start."""
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from servebench.store.layout import *\nfrom servebench.store.state import *\n"
        "write_study(StudyFolder(Path(sys.argv[1])), StudyState(study_id='s', words=(), runs=()))\n"
        "print(flush=True)\ntime.sleep(9999)"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    state = read_study(StudyFolder(tmp_path))
    assert state.at_work()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not state.at_work()
    child.communicate()
    assert not state.at_work()


def test_secrets_are_not_in_the_states(tmp_path):
    """Words of the command line, overrides and errors."""
    words = ("engine.extra_args.api-key=hush-1", "+engine.env={HF_TOKEN: hush-2}", "tracking.uri=https://u:hush-3@h")
    write_study(StudyFolder(tmp_path), replace(STUDY, words=words))
    write_run(RunFolder(tmp_path), RunState(run_id="r", title="t", overrides=words, error="Bearer hush-44 refused"))
    text = (tmp_path / "study.json").read_text() + (tmp_path / "run.json").read_text()
    assert "hush" not in text
    assert read_study(StudyFolder(tmp_path)).words[0] == "engine.extra_args.api-key=[redacted]"
