"""What a study emits while it runs, to a listener that prints nothing."""

import pytest

from servebench.analysis.events import StudyAnswered
from servebench.contracts.events import PlanReady, PointFinished, Problem, RunFinished, RunStarted, TurnStarted
from servebench.contracts.hooks import hookimpl
from servebench.contracts.notices import ResultsStored
from servebench.registry.registry import registry
from servebench.report.listeners import listeners
from servebench.study.study import run_study
from support.orchestration import Recorder

WORDS = ("engine=vllm", "launch=simulated", "gpu=h100", "model=qwen2.5-7b-instruct", "workload=unique", "load=quick")
WORDS += ("load.concurrency=[2]", "load.until=null", "load.requests=20", "tracking=none", "quality=none")
STAGES = (PlanReady, TurnStarted, RunStarted, PointFinished, RunFinished, ResultsStored, StudyAnswered)


@pytest.mark.slow
def test_a_study_says_what_happens_in_order_and_prints_nothing_itself(tmp_path, capsys):
    recorder = Recorder()
    assert run_study([*WORDS, f"study.dir={tmp_path}"], registry(), listen=recorder.listen) == 0
    stages = [type(one) for one in recorder.heard if isinstance(one, STAGES)]
    assert stages == list(STAGES)
    (point,), (finished,), (plan,) = map(recorder.of, (PointFinished, RunFinished, PlanReady))
    assert plan.points == 1
    assert point.point.row.requests_ok == 20
    assert finished.outcome.points == (point.point,)
    assert (finished.folder / "manifest.json").exists()
    assert capsys.readouterr() == ("", "")


class Broken:
    @hookimpl
    def servebench_point_finished(self, event):
        raise RuntimeError(event.run_id)


def test_plugins_hear_of_life_cycle_events_and_their_faults_are_problems(monkeypatch, capsys):
    known = registry()
    monkeypatch.setattr(known.manager, "list_name_plugin", lambda: [("broken", plugin)])
    plugin = Broken()
    known.manager.register(plugin)
    try:
        with listeners(known)() as events:
            events(Problem("another"))
            events(RunStarted(run_id="s/00", settings=None, folder=None))
            fault = known.tell(PointFinished(run_id="s/00", point=None, folder=None))
    finally:
        known.manager.unregister(plugin)
    assert len(fault) == 1
    assert "s/00" in fault[0]
    assert capsys.readouterr().err.splitlines() == ["servebench: another"]
