"""What is printed while a study runs, by the events that it emits."""

import io
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from servebench.contracts import events
from servebench.contracts.events import (
    Activity,
    AtOnce,
    Doing,
    EngineReady,
    Event,
    Notice,
    OneAtATime,
    PhaseProgress,
    PlanReady,
    PointFinished,
    RaceEnded,
    ResultsStored,
    RunFinished,
    Said,
    Tracked,
    TurnStarted,
)
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Point, RunOutcome
from servebench.report.terminal import words
from servebench.report.terminal.display import Display

SILENT = {
    *(
        events.RunStarted,
        events.PointFinished,
        events.RunFinished,
        events.RunCollected,
        events.Graded,
        events.RaceEnded,
    ),
}
"""The events without a line of their own."""


def kinds(module):
    found = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Event)]
    return {one for one in found if one.__module__ == module.__name__ and one is not Event}


def test_each_event_has_its_line():
    assert words.WORDS.keys() | SILENT == kinds(events)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (words.WAITING, Activity),
        (words.NOTICES, events.NoticeKind),
    ],
)
def test_each_value_has_its_words(values, names):
    assert set(values) == set(get_args(names))


def test_what_several_runs_have_to_say_alike_is_printed_once(capsys):
    display = Display()
    for reason in ("a", "a", "b"):
        display(Notice("scorer_left_out", note=reason))
    assert capsys.readouterr().err.splitlines() == ["quality: left out: a", "quality: left out: b"]


def test_why_engines_are_not_alive_at_once_is_printed_once(capsys):
    display = Display()
    for cores in ("0.98", "1.02"):
        display(OneAtATime(f"vllm uses {cores} cores"))
    assert capsys.readouterr().err.count("cores") == 1


def progress(run):
    return PhaseProgress(label="x", done=1, planned=2, failed=0, in_flight=1, rate=9.0, left_s=1.0, run=run)


def test_rows_and_the_live_line_have_the_label_of_their_own_run(tmp_path):
    """Of engines that take turns the one started last is not the one that is loaded."""
    display = Display()
    display(PlanReady(labels={"00": "threads=1", "01": "threads=2"}, points=4))
    display(AtOnce(["threads=1", "threads=2"]))
    for run in ("00", "01"):
        display(TurnStarted(run, "title"))
    display.lively = True
    seen = []
    for run in ("00", "01"):
        display(progress(run))
        seen.append(title(display))
    display(Doing("point"))
    point = Point(row=PointRow(concurrency=1, output_throughput_tok_s=43.1, requests_ok=5, requests_failed=0))
    for run in ("00", "01"):
        display(PointFinished(run_id=f"s/{run}", point=point, folder=tmp_path))
    assert [one.rpartition(" ")[2] for one in seen] == ["threads=1", "threads=2"]
    assert "threads" not in title(display)
    assert [line.split()[0] for line in live(display) if line.startswith("threads")] == ["threads=1", "threads=2"]


def live(display):
    out = Console(width=80, file=io.StringIO())
    out.print(display._render())
    return out.file.getvalue().splitlines()


def title(display):
    return live(display)[-2].rstrip()


def test_the_lines_of_events(capsys):
    display = Display()
    for event in (
        Said("built in 3 s"),
        EngineReady("vllm", [("loaded", 1.0), ("first_token", 2.5)]),
        Notice("timings_failed", note="refused"),
        Tracked("https://me:secret@host/mlflow", "tests"),  # pragma: allowlist secret
    ):
        display(event)
    assert capsys.readouterr().err.splitlines() == [
        "built in 3 s",
        "vllm: start took 2.5 s (loaded 1.00, first token 2.50)",
        "no request timings after the load: refused",
        "MLflow experiment 'tests': mlflow ui --backend-store-uri https://host/mlflow",
    ]


def test_the_runs_of_a_tune_that_are_closed_after_its_race_print_their_errors_only(capsys, tmp_path):
    display = Display()
    display(RaceEnded())
    display(TurnStarted("00", "title"))
    outcome = RunOutcome(run_id="s/00", status="failed", error="the disk is full")
    display(RunFinished(outcome=outcome, settings=None, folder=tmp_path))
    shown = capsys.readouterr()
    assert (shown.out, shown.err.splitlines()) == ("", ["servebench: the disk is full"])


def test_places_are_said_from_the_current_folder(capsys, tmp_path, monkeypatch):
    """Short enough for a line, and a command that works as it stands."""
    monkeypatch.chdir(tmp_path)
    display = Display()
    for event in (
        ResultsStored(tmp_path / "outputs" / "s"),
        ResultsStored(Path("/elsewhere") / str(tmp_path).lstrip("/") / "s"),
        Tracked(f"sqlite:///{tmp_path}/outputs/mlflow.db", "tests"),
    ):
        display(event)
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == [
        "outputs/s", f"/elsewhere{tmp_path}/s", "sqlite:///outputs/mlflow.db",
    ]  # fmt: skip
