"""What a study emits while it runs, to a listener that prints nothing."""

import pytest

from servebench.analysis.events import StudyAnswered
from servebench.contracts.events import PlanReady, PointFinished, ResultsStored, RunFinished, RunStarted, TurnStarted
from servebench.contracts.hooks import hookimpl
from servebench.registry.registry import registry
from servebench.report.terminal.display import listeners
from servebench.store.studies import load_run
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
    assert load_run(finished.folder).status == "finished"
    assert capsys.readouterr() == ("", "")


class Broken:
    @hookimpl
    def servebench_run_started(self, event):
        raise RuntimeError(event.run_id)


def test_plugins_hear_the_same_events_and_their_faults_are_errors_once(capsys):
    known, plugin = registry(), Broken()
    known.manager.register(plugin, name="broken")
    try:
        with listeners(known)() as events:
            for _ in range(2):
                events(RunStarted(run_id="s/00", settings=None, folder=None))
    finally:
        known.manager.unregister(plugin)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("servebench: plugin broken: servebench_run_started raised RuntimeError: s/00")
