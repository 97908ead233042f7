"""Whether an order may be executed, and which GPUs it may use."""

import json
import os

import pytest

from servebench.cluster import agent
from servebench.cluster.agent import lease_ports, refusal
from servebench.cluster.heartbeat import FILE, SILENT_S
from servebench.cluster.leases import Leases
from servebench.cluster.orders import visible_gpus
from servebench.contracts.settings import EngineSettings
from servebench.store.layout import StudyFolder
from servebench.store.state import RunState, StudyState, write_run, write_study
from support.fake_engine import fake_job
from support.orchestration import FakeClock, Recorder, run_order

RUN = "00_a"


@pytest.fixture
def folder(tmp_path):
    folder = StudyFolder(tmp_path / "s")
    folder.path.mkdir()
    return folder


def decide(folder, clock=None, ticket="t"):
    clock = clock or FakeClock()
    state = StudyState(study_id="s", words=(), runs=(RUN,), ticket="t")
    write_study(folder, state)
    order = run_order(study=str(folder.path), run=RUN, ticket=ticket)
    return refusal(folder, state, order, now=clock.now, sleep=clock.sleep)


def test_an_order_is_accepted_unless_an_earlier_command_gave_it(folder):
    assert decide(folder) is None
    assert RUN in decide(folder, ticket="of an earlier command")


@pytest.mark.parametrize(("status", "refused"), [("finished", True), ("interrupted", False), ("failed", False)])
def test_only_a_finished_run_is_refused(folder, status, refused):
    write_run(folder.create_run(RUN), RunState(run_id="s/00_a", title="t", overrides=(), status=status))
    assert (decide(folder) is not None) is refused


def test_an_order_waits_for_a_process_that_may_be_dead(folder):
    """A restarted job starts when its first process has just died; a living one keeps its run."""
    file = folder.create_run(RUN).path / FILE
    facts = json.dumps({"host": "far", "pid": 7, "job": "12"})
    file.write_text(facts)
    clock = FakeClock()
    clock.at(20, file.unlink)
    assert decide(folder, clock) is None
    assert clock.now() >= 20
    file.write_text(facts)
    clock = FakeClock()
    assert "far, job 12" in decide(folder, clock)
    assert clock.now() >= SILENT_S
    silent = file.stat().st_mtime - SILENT_S - 1
    os.utime(file, (silent, silent))
    assert decide(folder) is None


@pytest.mark.parametrize(
    ("variable", "gpus"), [(None, ["0", "1"]), ("1", ["1"]), ("", []), (" 0, GPU-abc ", ["0", "GPU-abc"])]
)
def test_visible_gpus(variable, gpus):
    assert visible_gpus({"gpus": [{"index": 0}, {"index": 1}]}, variable) == gpus


@pytest.mark.parametrize(
    ("engine", "local", "leased"),
    [
        ({"port": 41}, True, ("port-41",)),
        ({"port": 41}, False, ()),
        ({"port": 41, "spans_address": "127.0.0.1:43"}, True, ("port-41",)),
        ({"port": 41, "request_timings": "spans", "spans_address": "127.0.0.1:43"}, True, ("port-41", "port-43")),
        ({"request_timings": "spans", "spans_address": "127.0.0.1:43"}, False, ("port-43",)),
        ({"port": 41, "request_timings": "spans", "spans_address": "127.0.0.1:41"}, True, ("port-41",)),
        ({"request_timings": "spans"}, True, ()),
    ],
)
def test_the_ports_that_a_config_names_are_leased(tmp_path, monkeypatch, engine, local, leased):
    """Two runs on one machine wait for one another instead of failing."""
    monkeypatch.setattr(agent, "port_problem", lambda *_: None)
    leases = Leases(tmp_path)
    settings = fake_job(engine=EngineSettings(name="fake", **engine)).settings
    lease_ports(leases, settings, Recorder(), local=local)
    assert leases.names == leased
    leases.release()
