"""The life of a run on a fake engine under a fake load."""

from dataclasses import replace

import pytest

from servebench.contracts.exchange import StopReason
from servebench.contracts.hooks import LIFE_CYCLE
from servebench.contracts.point_id import PointId
from servebench.contracts.settings import EngineSettings
from servebench.contracts.turns import Turn
from servebench.engine.pool import EnginePool
from servebench.run import late_timings, measure, session
from servebench.run.lifecycle import run_steps
from servebench.run.live import LiveLoad
from servebench.run.prior import PriorProgress, prior_progress
from servebench.run.session import RunRequest, RunTask
from servebench.run.steps import alone
from servebench.store.layout import RunFolder, StudyFolder
from servebench.store.state import RunState, write_run
from servebench.store.tables import read_frame, read_requests
from servebench.util.errors import EngineError, FailureKind, LoadError
from support.fake_engine import FakeLoad, FakeTokenizer, fake_job, fake_registry
from support.orchestration import Recorder


class Bench:
    """Runs of one process: a pool with fake engines, and a folder for each run."""

    def __init__(self, path, monkeypatch):
        self.path = path
        self.registry = fake_registry()
        self.events = Recorder()
        self.pool = EnginePool(self.registry, self.events, path / "cache", port_of=lambda host: 1)
        self.load = FakeLoad()
        monkeypatch.setattr(LiveLoad, "drive", lambda _, *args, **named: self.load(*args, **named))
        monkeypatch.setattr(session, "engine_tokenizer", lambda *_: FakeTokenizer())

    @property
    def engines(self):
        return self.registry.kinds["launch"]["fake"].started

    @property
    def streams(self):
        return self.registry.kinds["workload"]["fake"].streams

    def folder(self, name="00"):
        folder = RunFolder(self.path / name)
        folder.path.mkdir(exist_ok=True)
        return folder

    def run(self, job=None, name="00", earlier=None, turn=None):
        request = RunRequest(
            study=StudyFolder(self.folder(name).path.parent),
            words=(),
            events=self.events,
            pool=self.pool,
            registry=self.registry,
            machine={"gpus": ()},
            task=RunTask(name, job or fake_job(), earlier or PriorProgress()),
            turn=turn or Turn(),
        )
        return alone(run_steps(request))

    def happened(self):
        """The starts and points that the plugins hear of."""
        return [type(one).__name__ for one in self.events.heard if type(one) in LIFE_CYCLE]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


def with_load(**changes):
    job = fake_job()
    return fake_job(load=replace(job.settings.load, **changes))


def codes(point):
    return {doubt.code for doubt in point.doubts}


def ended(result):
    return result.outcome.status, result.outcome.failure


def test_a_run_measures_its_points_in_order(bench):
    result = bench.run(with_load(warmup_requests=2))
    assert ended(result) == ("finished", None)
    assert bench.load.phases == ["c1-r0 warm-up", "c1-r0", "c2-r0 warm-up", "c2-r0"]
    assert [point.row.requests_ok for point in result.outcome.points] == [4, 4]
    assert list(read_frame(bench.folder().points).point) == ["c1-r0", "c2-r0"]
    assert read_requests(bench.folder()).groupby(["point", "warmup"]).size().to_dict() == {
        ("c1-r0", False): 4, ("c1-r0", True): 2, ("c2-r0", False): 4, ("c2-r0", True): 2,
    }  # fmt: skip
    assert bench.happened() == ["RunStarted", "PointFinished", "PointFinished"]
    assert [(one["point"], one["warmup"], one["planned"], one["stored"]) for one in result.ledger] == [
        ("c1-r0", True, 2, 2), ("c1-r0", False, 4, 4), ("c2-r0", True, 2, 2), ("c2-r0", False, 4, 4),
    ]  # fmt: skip
    assert len(bench.engines) == 1
    assert not bench.engines[0].stops, "the engine stays with the pool"


def test_prompts_of_the_warm_up_are_others(bench):
    bench.run(with_load(warmup_requests=2, concurrency=(1,)))
    assert len(set(bench.streams)) == len(bench.streams) == 2


def test_an_engine_that_does_not_start_is_a_failed_run(bench):
    bench.registry.kinds["launch"]["fake"].refuses = "no weights"
    result = bench.run()
    assert ended(result) == ("failed", FailureKind.NOT_READY)
    assert result.outcome.points == ()
    assert result.lease is None
    assert bench.happened() == ["RunStarted"]


@pytest.mark.parametrize(
    ("flag", "wanted", "starts"), [("--timings", True, 2), ("--timings", False, 1), (None, True, 1)]
)
def test_an_old_version_without_request_timings_starts_without_them(bench, monkeypatch, flag, wanted, starts):
    """A start that rejects its flags is repeated once, if one of them is the optional one."""
    launcher, tried = bench.registry.kinds["launch"]["fake"], []
    monkeypatch.setattr(bench.registry.kinds["engine"]["fake"], "timings_flag", flag)
    launch = launcher.launch

    def strict(self, engine, context, *args, **named):
        tried.append(context.engine.request_timings)
        if context.engine.request_timings or starts == 1:
            raise EngineError("unrecognized arguments", kind=FailureKind.UNKNOWN_FLAG)
        return launch(self, engine, context, *args, **named)

    monkeypatch.setattr(launcher, "launch", strict)
    job = fake_job()
    result = bench.run(fake_job(engine=replace(job.settings.engine, request_timings=wanted)))
    assert len(tried) == starts
    assert result.outcome.status == ("finished" if starts == 2 else "failed")
    if starts == 2:
        bench.pool.stop()
        bench.run(fake_job(engine=replace(job.settings.engine, request_timings=wanted)))
        assert tried == [True, False, False], "the next start leaves the flag out at once"


@pytest.mark.parametrize(("port", "tried", "status"), [(None, [1, 2], "finished"), (8000, [8000], "failed")])
def test_a_port_that_another_process_took_is_chosen_again(bench, monkeypatch, port, tried, status):
    """Once, and not one that the config names."""
    launcher, ports, free = bench.registry.kinds["launch"]["fake"], [], iter((1, 2, 3))
    bench.pool._port_of = lambda host: next(free)
    launch = launcher.launch

    def second(self, engine, context, *args, **named):
        ports.append(context.port)
        if len(ports) == 1:
            raise EngineError("taken", kind=FailureKind.PORT_IN_USE)
        return launch(self, engine, context, *args, **named)

    monkeypatch.setattr(launcher, "launch", second)
    result = bench.run(fake_job(engine=replace(fake_job().settings.engine, port=port)))
    assert ports == tried
    assert result.outcome.status == status


def test_a_dead_engine_fails_the_run_and_keeps_its_points(bench):
    def on_phase(name):
        if name == "c2-r0":
            bench.engines[0].death = "killed by signal 9"

    bench.load.on_phase = on_phase
    result = bench.run(with_load(concurrency=(1, 2, 4)))
    assert ended(result) == ("failed", FailureKind.DIED)
    assert "killed by signal 9" in result.outcome.error
    assert bench.load.phases == ["c1-r0", "c2-r0"], "later levels are not tried"
    assert [codes(point) & {"engine_died"} for point in result.outcome.points] == [set(), {"engine_died"}]
    assert list(read_frame(bench.folder().points).point) == ["c1-r0", "c2-r0"]
    assert len(read_requests(bench.folder()).query("point == 'c2-r0'")) == 2


class CountingEngine(FakeTokenizer):
    """Counts with the engine itself, as `/tokenize` does: not once it is dead."""

    exact = True

    def __init__(self, bench):
        self.bench = bench

    def count(self, texts):
        if self.bench.load.phases[-1:] == ["c2-r0"]:
            self.bench.engines[0].death = "fake died: killed by SIGKILL"
            raise EngineError("cannot count tokens at http://x/tokenize: connection refused")
        return super().count(texts)


def test_an_engine_that_dies_before_its_tokens_are_counted_is_a_dead_engine(bench, monkeypatch):
    """Not an address that refuses connections; the answers that had ended are kept."""
    monkeypatch.setattr(session, "engine_tokenizer", lambda *_: CountingEngine(bench))
    monkeypatch.setattr(measure, "count_missing", lambda records, count: count([r.text for r in records]) and records)
    result = bench.run(with_load(concurrency=(1, 2, 4)))
    assert ended(result) == ("failed", FailureKind.DIED)
    assert "killed by SIGKILL" in result.outcome.error
    assert len(read_requests(bench.folder()).query("point == 'c2-r0'")) == 4
    assert list(read_frame(bench.folder().points).point) == ["c1-r0", "c2-r0"]


def test_an_engine_that_hangs_and_counts_nothing_has_its_point(bench, monkeypatch):
    """Its requests time out, and so does the count of what some of them got: the point says what happened, not the tokenizer."""

    class Hanging(FakeTokenizer):
        exact = True

        def count(self, texts):
            if bench.load.phases:
                raise EngineError("cannot count tokens at http://x/tokenize: timed out")
            return super().count(texts)

    bench.load.outcomes["c1-r0"] = "timeout"
    monkeypatch.setattr(session, "engine_tokenizer", lambda *_: Hanging())
    monkeypatch.setattr(measure, "count_missing", lambda records, count: count([r.text for r in records]) and records)
    monkeypatch.setattr(LiveLoad, "_failing", lambda _: "it sends nothing")
    result = bench.run(with_load(concurrency=(1, 2)))
    assert result.outcome.status == "failed"
    assert "it sends nothing" in result.outcome.error
    assert [codes(point) & {"not_answering"} for point in result.outcome.points] == [{"not_answering"}]


@pytest.mark.parametrize("point", ["c1-r0", "c2-r0"])
def test_a_defect_of_a_plugin_fails_its_run_and_is_seen(bench, capsys, point):
    """What was measured is kept, and the engine is left to the pool, which stops it."""

    def fails(name):
        if name == point:
            raise KeyError("a defect")

    bench.load.on_phase = fails
    result = bench.run()
    assert ended(result)[0] == "failed"
    assert result.outcome.failure == FailureKind.INTERNAL
    assert result.outcome.exit_code == 1
    assert len(result.outcome.points) == (point == "c2-r0")
    assert "Traceback" in capsys.readouterr().err
    assert bench.pool.stop().stopped


def test_a_dead_worker_fails_its_point_only(bench):
    bench.load.on_phase = lambda name: StopReason.WORKER_DIED if name == "c1-r0" else None
    result = bench.run()
    assert ended(result) == ("failed", FailureKind.WORKER)
    assert bench.load.phases == ["c1-r0", "c2-r0"]
    assert "c1-r0" in result.outcome.error
    assert "servebench resume" in result.outcome.error
    assert [codes(point) & {"worker_died"} for point in result.outcome.points] == [{"worker_died"}, set()]


@pytest.mark.slow
def test_a_silent_engine_fails_the_run(bench):
    bench.load.on_phase = lambda name: StopReason.NO_PROGRESS
    result = bench.run()
    assert ended(result) == ("failed", FailureKind.SILENT)
    assert bench.load.phases == ["c1-r0"]


@pytest.mark.parametrize("by", ["reason", "exception"])
def test_an_interrupt_keeps_what_was_measured(bench, by):
    def on_phase(name):
        if name != "c2-r0":
            return None
        if by == "exception":
            raise KeyboardInterrupt
        return StopReason.INTERRUPT

    bench.load.on_phase = on_phase
    result = bench.run()
    assert ended(result) == ("interrupted", FailureKind.INTERRUPTED)
    assert next(iter(read_frame(bench.folder().points).point)) == "c1-r0"


def test_a_warm_up_that_is_stopped_ends_the_point(bench):
    bench.load.on_phase = lambda name: StopReason.INTERRUPT if "warm-up" in name else None
    result = bench.run(with_load(warmup_requests=2))
    assert ended(result) == ("interrupted", FailureKind.INTERRUPTED)
    assert bench.load.phases == ["c1-r0 warm-up"]
    assert [point.verdict for point in result.outcome.points] == ["void"]


def test_a_run_without_any_success_fails(bench, monkeypatch):
    """Its engine is too slow for the load, and answers one request alone."""
    monkeypatch.setattr(LiveLoad, "_failing", lambda self: None)
    bench.load.outcomes = {"c1-r0": "timeout", "c2-r0": "timeout"}
    result = bench.run()
    assert ended(result) == ("failed", FailureKind.LOAD)
    assert result.outcome.exit_code == LoadError("").exit_code
    assert len(result.outcome.points) == 2


def test_a_ledger_that_does_not_add_up_fails_the_run(bench):
    full = bench.load

    def lose_a_record(*args, **named):
        report, records = full(*args, **named)
        return report, records[1:]

    bench.load = lose_a_record
    result = bench.run()
    assert ended(result) == ("failed", FailureKind.LEDGER)


def test_runs_share_an_engine_and_not_their_prompts(bench):
    job = fake_job()
    first = bench.run(job, "00")
    assert bench.pool.release(job.settings) is None
    second = bench.run(job, "01")
    assert len(bench.engines) == 1
    assert (first.lease.uses, second.lease.uses) == (0, 1)
    assert len(set(bench.streams)) == len(bench.streams) == 4
    assert bench.pool.release(None).stopped
    assert bench.engines[0].stops == 1


def test_a_run_after_a_dead_engine_starts_its_own(bench):
    job = fake_job()
    bench.run(job, "00")
    bench.engines[0].death = "killed"
    assert ended(bench.run(job, "01")) == ("finished", None)
    assert len(bench.engines) == 2


def test_stored_points_are_kept_and_others_measured_as_another_attempt(bench):
    bench.load.on_phase = lambda name: StopReason.INTERRUPT if name == "c1-r0" else None
    bench.run()
    folder = bench.folder()
    write_run(folder, RunState(run_id="s/00", title="t", overrides=(), status="interrupted"))
    prior = prior_progress(folder)
    assert dict(prior.points) == {}
    bench.load = FakeLoad()
    result = bench.run(earlier=prior)
    assert ended(result) == ("finished", None)
    assert bench.load.phases == ["c1-r0-a1", "c2-r0"]
    write_run(folder, RunState(run_id="s/00", title="t", overrides=(), status="finished"))
    again = prior_progress(folder)
    assert set(again.points) == {PointId.parse("c1-r0"), PointId.parse("c2-r0")}
    engines = len(bench.engines)
    bench.pool.stop()
    bench.load = FakeLoad()
    result = bench.run(earlier=again)
    assert (ended(result), bench.load.phases) == (("finished", None), [])
    assert len(bench.engines) == engines, "no engine is started for nothing"


def test_a_turn_measures_one_repeat(bench):
    job = with_load(repeats=2, order="interleaved")
    first = bench.run(job, turn=Turn(range(1), first=True, last=False))
    assert bench.load.phases == ["c1-r0", "c2-r0"]
    assert bench.happened() == ["RunStarted", "PointFinished", "PointFinished"]
    earlier = PriorProgress().after(first.outcome)
    last = bench.run(job, turn=Turn(range(1, 2), first=False, last=True), earlier=earlier)
    assert bench.load.phases[2:] == ["c1-r1", "c2-r1"]
    assert [point.row.point for point in last.outcome.points] == ["c1-r0", "c2-r0", "c1-r1", "c2-r1"]
    assert bench.happened().count("RunStarted") == 1


def test_a_cache_that_is_not_emptied_is_a_warning_of_each_point(bench, monkeypatch):
    """Prompts are salted all the same, so the verdict does not depend on it."""
    engine = bench.registry.kinds["engine"]["fake"]
    monkeypatch.setattr(engine, "reset_path", "/reset")
    reasons = iter(["/reset returned 404", None])
    monkeypatch.setattr("servebench.engine.supervisor.endpoint.reset_cache", lambda *_: next(reasons))
    workload = replace(fake_job().settings.workload, cache="cold")
    result = bench.run(fake_job(workload=workload))
    warnings = [[d for d in point.doubts if d.code == "cache_not_reset"] for point in result.outcome.points]
    assert [len(found) for found in warnings] == [1, 0]
    assert "/reset returned 404" in warnings[0][0].message
    assert warnings[0][0].mark
    assert [point.row.cache_state for point in result.outcome.points] == ["salted", "reset"]
    assert "cache_not_reset" in list(read_frame(bench.folder().points).doubts[0])


def test_the_files_of_request_timings_are_new_private_and_removed(bench, monkeypatch):
    """They may hold prompts, also those of an engine that was killed with servebench."""
    monkeypatch.setattr(late_timings, "LATE_S", 0.0)
    engine = bench.registry.kinds["engine"]["fake"]
    kept = bench.path / "cache" / "request-timings" / "fake-1"
    seen = []

    class Keeping(engine):
        timings_in_files = True
        timings_sources = ("after_load",)

        def timings_after_load(self, context, running):
            seen.append((list(context.kept_folder.iterdir()), context.kept_folder.stat().st_mode & 0o777))
            (context.kept_folder / "new").write_text("prompt")
            return {}

    bench.registry.kinds["engine"]["fake"] = Keeping
    kept.mkdir(parents=True)
    (kept / "old").write_text("prompt")
    bench.run(fake_job(engine=EngineSettings(name="fake", request_timings="after_load")))
    assert seen[0] == ([], 0o700)
    bench.pool.stop()
    assert not kept.exists()
    kept.mkdir()
    bench.run(name="01")
    bench.pool.stop()
    assert kept.exists(), "a run without such files leaves those of others alone"
