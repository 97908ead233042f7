"""The dispatcher on a fake cluster: order of jobs, lost jobs, refused orders, Ctrl-C."""

import json
import signal

import pytest

from servebench.cluster.dispatcher import POLL_S, STOPPING_S, Dispatcher
from servebench.cluster.heartbeat import FILE
from servebench.config import compose_jobs
from servebench.contracts.cluster import JobEnd, RunReply, SubmititSettings
from servebench.contracts.events import Notice
from servebench.contracts.results import RunOutcome
from servebench.registry.registry import registry
from servebench.run.session import RunTask
from servebench.run.turns import FixedOrder, follow, turns_in_order
from servebench.store.layout import StudyFolder
from servebench.store.plan import PlannedRun, write_plan
from servebench.store.state import StudyState, read_run, write_study
from servebench.util.errors import PreflightError
from support.orchestration import FakeClock, FakeCluster, Recorder

WORDS = ("workload=unique", "launch=emulated", "gpu=rtx5090", "model=qwen2.5-7b-instruct", "load.concurrency=[1]")
RUNS = ("00_vllm_unique", "01_sglang_unique")


@pytest.fixture(scope="module")
def jobs():
    return compose_jobs(["-m", "engine=vllm,sglang", *WORDS], registry())


class Bench:
    """A dispatcher with two runs, its cluster and its clock."""

    def __init__(self, path, jobs, *, places=1, retries=1):
        self.folder = StudyFolder(path / "s")
        self.folder.path.mkdir()
        state = StudyState(study_id="s", words=WORDS, runs=RUNS, ticket="t1")
        plan = [PlannedRun(name=n, overrides=j.overrides, config=j.resolved) for n, j in zip(RUNS, jobs, strict=True)]
        write_plan(self.folder, plan)
        write_study(self.folder, state)
        self.tasks = [RunTask(name, job) for name, job in zip(RUNS, jobs, strict=True)]
        self.clock = FakeClock()
        self.cluster = FakeCluster(places=places)
        self.events = Recorder()
        self.ended: list[tuple[str, RunOutcome]] = []
        self.dispatcher = Dispatcher(
            folder=self.folder,
            state=state,
            settings=SubmititSettings(name="submitit_slurm", retries=retries),
            events=self.events,
            registry=registry(),
            cluster=self.cluster,
            now=self.clock.now,
            sleep=self.clock.sleep,
        )

    def run(self):
        policy = FixedOrder(self.tasks, turns_in_order(self.tasks), lambda name, one: self.ended.append((name, one)))
        try:
            assert follow(policy, self.dispatcher) is self.dispatcher.interrupted
        finally:
            self.dispatcher.close()
        assert self.cluster.closed
        assert not (self.folder.path / FILE).exists()

    def reply(self, make):
        """End each job as soon as it is submitted, as `make` says of its order."""
        self.cluster.on_submit = lambda job, order: self.cluster.end(job, make(order))

    def interrupt_at(self, time_s):
        self.clock.at(time_s, lambda: signal.raise_signal(signal.SIGINT))

    def ordered(self):
        return [order.run for order in self.cluster.orders.values()]

    def statuses(self):
        return [(name, outcome.status, outcome.failure) for name, outcome in self.ended]


@pytest.fixture
def bench(tmp_path, jobs):
    return lambda **options: Bench(tmp_path, jobs, **options)


def finished(run):
    return JobEnd(reply=RunReply(outcome=RunOutcome(run_id=f"s/{run}", status="finished"), place={"host": "node1"}))


def test_runs_are_submitted_as_places_become_free(bench):
    b = bench(places=1)
    b.cluster.on_submit = lambda job, order: b.clock.at(
        b.clock.now() + 10, lambda: b.cluster.end(job, finished(order.run))
    )
    b.cluster.machines = {"j0": "node1"}
    b.run()
    assert b.ordered() == list(RUNS)
    assert b.statuses() == [(run, "finished", None) for run in RUNS]
    assert b.clock.now() >= 20
    assert not b.dispatcher.interrupted
    assert any(one.at == "node1" for one in b.events.of(Notice))


def test_an_order_has_the_ticket_and_what_the_run_needs(bench):
    b = bench(places=2)
    b.reply(lambda order: finished(order.run))
    b.run()
    order = b.cluster.orders["j0"]
    assert (order.ticket, order.study, order.run) == ("t1", str(b.folder.path), RUNS[0])
    # an emulated engine uses no GPU; a shared disk needs no copies
    assert (order.gpus, order.files, order.cluster_gives_gpus) == (0, {}, True)


def test_a_lost_job_is_submitted_again_after_the_others(bench):
    b = bench(places=1)
    replies = iter([JobEnd(lost="node failed"), finished(RUNS[1]), finished(RUNS[0])])
    b.reply(lambda _: next(replies))
    b.run()
    assert b.ordered() == [RUNS[0], RUNS[1], RUNS[0]]
    assert b.statuses() == [(RUNS[1], "finished", None), (RUNS[0], "finished", None)]
    assert [one for one in b.events.of(Notice) if one.kind == "job_lost"] == [
        Notice("job_lost", RUNS[0], "node failed")
    ]


def test_a_job_that_is_lost_too_often_ends_its_run_and_no_other(bench):
    b = bench(places=2, retries=1)
    b.reply(lambda order: JobEnd(lost="node failed") if order.run == RUNS[0] else finished(order.run))
    b.run()
    assert b.ordered().count(RUNS[0]) == 2
    assert {name: status for name, status, _ in b.statuses()} == {RUNS[0]: "interrupted", RUNS[1]: "finished"}
    stored = read_run(b.folder.run(RUNS[0]))
    assert (stored.status, stored.failure) == ("interrupted", "lost")
    assert "servebench resume s" in stored.error


def test_a_lost_job_whose_machine_still_writes_is_not_doubled(bench):
    """The next order waits until the heartbeat of the first process is silent."""
    b = bench(places=1)
    run = b.folder.create_run(RUNS[0]).path
    alive = run / FILE
    alive.write_text(json.dumps({"host": "far", "pid": 1, "job": None}))
    submitted = []

    def make(order):
        submitted.append((order.run, alive.exists()))
        return JobEnd(lost="no contact") if len(submitted) == 1 else finished(order.run)

    b.reply(make)
    b.clock.at(30, alive.unlink)
    b.run()
    assert submitted == [(RUNS[0], True), (RUNS[1], False), (RUNS[0], False)]
    assert b.clock.now() >= 30


def test_a_refused_order_is_not_repeated(bench):
    b = bench(places=2)
    b.reply(lambda _: JobEnd(reply=RunReply(outcome=None, place={}, refused="already running on node7")))
    b.run()
    assert b.ordered() == list(RUNS)
    assert b.statuses() == [(run, "interrupted", "lost") for run in RUNS]
    assert all("node7" in read_run(b.folder.run(run)).error for run in RUNS)


def test_a_cluster_that_rejects_an_order_ends_the_dispatch(bench):
    b = bench()

    def reject(order):
        raise PreflightError("no such partition")

    b.reply(reject)
    with pytest.raises(PreflightError, match="no such partition"):
        b.run()
    assert b.cluster.closed
    assert b.ended == []


@pytest.mark.parametrize("obeys", [True, False])
def test_ctrl_c_cancels_jobs_and_starts_no_others(bench, obeys):
    b = bench(places=1)
    b.cluster.obeys_cancel = obeys
    b.interrupt_at(5)
    b.run()
    assert b.cluster.cancelled
    assert b.dispatcher.interrupted
    assert b.ordered() == [RUNS[0]]
    if obeys:
        assert b.statuses() == [(RUNS[0], "interrupted", "lost")]
        assert b.clock.now() < 5 + 2 * POLL_S + 1
    else:
        # a job that ignores it is left alone after a while
        assert b.statuses() == []
        assert b.clock.now() >= STOPPING_S


def test_a_run_that_stores_its_end_after_ctrl_c_is_collected(bench):
    b = bench(places=1)
    b.cluster.obeys_cancel = False
    ended = RunOutcome(run_id=f"s/{RUNS[0]}", status="interrupted", error="interrupted", failure="interrupted")
    b.clock.at(20, lambda: b.cluster.end("j0", JobEnd(reply=RunReply(outcome=ended, place={"host": "n"}))))
    b.interrupt_at(5)
    b.run()
    assert b.statuses() == [(RUNS[0], "interrupted", "interrupted")]


def reply(run, **changes):
    facts = {"outcome": RunOutcome(run_id=f"s/{run}", status="finished"), "place": {"host": "node1"}}
    return RunReply(**(facts | changes))


HOSTILE = {
    "text": lambda run: "done",
    "a number": lambda run: 7,
    "a list": lambda run: [reply(run)],
    "an outcome without its reply": lambda run: RunOutcome(run_id=f"s/{run}", status="finished"),
    "no outcome but text": lambda run: reply(run, outcome="finished"),
    "an unknown status": lambda run: reply(run, outcome=RunOutcome(run_id=f"s/{run}", status="perfect")),
    "another run": lambda run: reply(run, outcome=RunOutcome(run_id="s/../../x", status="finished")),
    "points of text": lambda run: reply(run, outcome=RunOutcome(run_id=f"s/{run}", status="finished", points=("x",))),
    "points that are none": lambda run: reply(run, outcome=RunOutcome(run_id=f"s/{run}", status="finished", points=5)),
    "an error that is none": lambda run: reply(run, outcome=RunOutcome(run_id=f"s/{run}", status="failed", error=5)),
    "no place": lambda run: reply(run, place=None),
    "files of text": lambda run: reply(run, files="archive"),
    "a broken archive": lambda run: reply(run, files=b"archive"),
    "prompts that are none": lambda run: reply(run, prompts={"prompts/x.json.gz": 5}),
    "prompts in a list": lambda run: reply(run, prompts=["x"]),
    "a refusal of bytes": lambda run: reply(run, outcome=None, refused=b"no"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_reply_ends_its_own_run_alone(bench, name):
    """It becomes an interrupted run with one line; the other run is measured."""
    b = bench(places=1)
    b.reply(lambda order: JobEnd(reply=HOSTILE[name](order.run)) if order.run == RUNS[0] else finished(order.run))
    b.run()
    assert [(run, status) for run, status, _ in b.statuses()] == [(RUNS[0], "interrupted"), (RUNS[1], "finished")]
    assert read_run(b.folder.run(RUNS[0])).status == "interrupted"
    assert "\n" not in read_run(b.folder.run(RUNS[0])).error


@pytest.mark.parametrize("text", ["{", "null", "[]", '{"status": 5}', '{"status": "finished", "started_s": "x"}'])
def test_a_state_that_a_job_broke_ends_its_own_run_alone(bench, text):
    b = bench(places=1, retries=0)

    def break_state(order):
        if order.run != RUNS[0]:
            return finished(order.run)
        b.folder.create_run(order.run).state.write_text(text)
        return JobEnd(lost="job j0 crashed")

    b.reply(break_state)
    b.run()
    assert [(run, status) for run, status, _ in b.statuses()] == [(RUNS[0], "interrupted"), (RUNS[1], "finished")]


def test_jobs_do_not_go_on_without_the_command(bench):
    """A scheduler that rejects the second order: the first job is cancelled."""
    b = bench(places=2)
    submit, calls = b.cluster.submit, []

    def submit_one(orders):
        calls.append(orders)
        if len(calls) > 1:
            raise PreflightError("rejected")
        return submit(orders)

    b.cluster.submit = submit_one
    b.cluster.places = 1
    b.clock.at(5, lambda: setattr(b.cluster, "places", 2))
    with pytest.raises(PreflightError):
        b.run()
    assert b.cluster.cancelled
