"""Checks before anything starts."""

import resource
import socket
from dataclasses import replace

import pytest

from servebench.contracts.quality import Scorer
from servebench.contracts.settings import EngineSettings, ModelSettings, QualitySettings, ReplaySettings
from servebench.quality.rows import read_rows
from servebench.run.preflight import (
    check_jobs,
    descriptor_faults,
    flag_faults,
    timings_faults,
)
from servebench.util.errors import ConfigError, PreflightError
from support.fake_engine import FakeEngine, FakeLauncher, FakeWorkload, fake_job, fake_registry


def registry_of(*, local=True, emulated=False, needs_executable=True):
    """Return a registry in which every part names itself as a fault."""
    engine = type("E", (FakeEngine,), {"check": lambda *_: ["engine"], "unsupported_settings": lambda *_: ["settings"]})
    flags = {"local": local, "emulated": emulated, "needs_executable": needs_executable}
    launcher = type("L", (FakeLauncher,), {"check": lambda *_: ["launcher"], **flags})
    workload = type("W", (FakeWorkload,), {"check": lambda _: ["workload"]})
    return fake_registry(engine={"fake": engine}, launch={"fake": launcher}, workload={"fake": workload})


def faults_of(job, registry, **options):
    with pytest.raises((PreflightError, ConfigError)) as error:
        check_jobs([job, job], registry, **options)
    return str(error.value).splitlines()


@pytest.mark.parametrize(
    ("flags", "here", "faults"),
    [
        ({}, True, ["engine", "launcher", "workload"]),
        ({"needs_executable": False}, True, ["settings", "launcher", "workload"]),
        ({"needs_executable": False, "local": False}, True, ["launcher", "workload"]),
        ({}, False, ["settings", "workload"]),
        ({"needs_executable": False, "local": False}, False, ["workload"]),
    ],
)
def test_all_faults_are_reported_once_and_only_those_of_this_machine(flags, here, faults):
    assert faults_of(fake_job(), registry_of(**flags), here=here) == faults


def test_a_host_of_another_machine_is_a_fault_on_this_one():
    job = fake_job(engine=EngineSettings(name="fake", host="no-such-host.invalid"))
    (fault,) = faults_of(job, registry_of())
    assert fault.startswith("engine.host=no-such-host.invalid: ")
    assert faults_of(job, registry_of(), here=False) == ["settings", "workload"]


def test_a_defect_of_a_plugin_is_a_fault_and_hides_no_other():
    def broken(*_):
        raise KeyError("x")

    registry = registry_of()
    registry.find("engine", "fake").check = lambda *_: None
    registry.find("workload", "fake").check = broken
    engine, launcher, workload = faults_of(fake_job(), registry)
    assert launcher == "launcher"
    for fault, name, error in ((engine, "engine=fake: ", "TypeError"), (workload, "workload=fake: ", "KeyError")):
        assert fault.startswith(name)
        assert error in fault


def _of_wrong_data(*_, **__):
    raise ConfigError("data")


@pytest.mark.parametrize("wrong", [{"requests": _of_wrong_data}, {"check": lambda _: ["data"]}])
@pytest.mark.parametrize(("engine_faults", "kind"), [([], ConfigError), (["engine"], PreflightError)])
def test_wrong_data_is_a_mistake_of_the_user_also_before_a_run(engine_faults, kind, wrong):
    """As with --preview, a file that is missing as one that is damaged; what the machine lacks comes first."""
    engine = type("E", (FakeEngine,), {"check": lambda *_: engine_faults})
    workload = type("W", (FakeWorkload,), wrong)
    launcher = type("L", (FakeLauncher,), {"local": True, "needs_executable": True})
    registry = fake_registry(engine={"fake": engine}, launch={"fake": launcher}, workload={"fake": workload})
    with pytest.raises(kind) as error:
        check_jobs([fake_job()], registry)
    assert str(error.value).splitlines() == [*engine_faults, "data"]


@pytest.mark.parametrize(("flags", "seen"), [({}, True), ({"emulated": True}, False), ({"local": False}, False)])
def test_a_secret_flag_is_a_fault_where_the_engine_is_started(flags, seen):
    job = fake_job(engine=EngineSettings(name="fake", extra_args={"--api-key": "k", "--empty-token": "", "--size": 3}))
    faults = faults_of(job, registry_of(**flags))
    assert any("engine.extra_args.--api-key" in fault for fault in faults) is seen
    assert len(flag_faults(job.settings)) == 1


@pytest.mark.parametrize(("flags", "seen"), [({}, True), ({"emulated": True}, False), ({"local": False}, False)])
def test_a_flag_by_which_the_server_is_found_is_a_fault(flags, seen):
    job = fake_job(engine=EngineSettings(name="fake", extra_args={"port": 3, "--served_model_name": "x", "size": 3}))
    faults = [fault for fault in faults_of(job, registry_of(**flags)) if "extra_args" in fault]
    assert [fault.split("=")[0] for fault in faults] == [
        f"engine.extra_args.{name}" for name in ("port", "--served_model_name") if seen
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"model": ModelSettings(name="m", tokenizer="no/such")},
        {"model": ModelSettings(name="m", tokenizer="broken.json")},
        {"load": replace(fake_job().settings.load, replay=ReplaySettings(path="no.jsonl"))},
        {"quality": QualitySettings(name="fake", path="no.jsonl")},
    ],
    ids=["tokenizer", "broken", "replay", "quality"],
)
def test_a_file_that_cannot_be_read_is_a_mistake_of_the_user(changes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{}")
    scorer = type("S", (Scorer,), {"name": "fake", "items": lambda _, path, *__: read_rows(path)})
    with pytest.raises(ConfigError) as error:
        check_jobs([fake_job(**changes)], fake_registry(quality={"fake": scorer}))
    assert any(name in str(error.value) for name in ("no/such", "broken.json", "no.jsonl"))


def test_streams_need_file_descriptors(monkeypatch):
    job = fake_job()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))

    def faults(concurrency, **changes):
        load = replace(job.settings.load, concurrency=(1, concurrency), **changes)
        return descriptor_faults(replace(job.settings, load=load))

    assert faults(50, workers=1) == []
    (fault,) = faults(100, workers=1)
    assert "load.concurrency=100" in fault
    assert faults(100, workers=2) == []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, resource.RLIM_INFINITY))
    assert faults(10_000, workers=1) == []


@pytest.mark.parametrize(
    ("source", "address", "flags", "words"),
    [
        ("spans", "127.0.0.1:0", {}, "fake has no such times; use after_load, true or false"),
        ("spans", "127.0.0.1:0", {"local": False}, "needs the port"),
        ("spans", "127.0.0.1:0", {"simulated": True, "known": ("spans",)}, "launch=simulated has no server"),
        ("after_load", "127.0.0.1:0", {"known": ()}, "fake has no such times; use true or false"),
        ("spans", "192.0.2.1:4318", {"known": ("spans",)}, "cannot listen at engine.spans_address=192.0.2.1:4318"),
        ("after_load", "127.0.0.1:0", {}, None),
        ("after_load", "127.0.0.1:0", {"files": True}, "only launch=process has on this machine"),
        ("after_load", "127.0.0.1:0", {"files": True, "needs_executable": True}, None),
        ("after_load", "127.0.0.1:0", {"files": True, "emulated": True}, None),
        ("after_load", "127.0.0.1:0", {"files": True, "local": False, "needs_executable": True}, "only launch=process"),
        ("spans", "127.0.0.1:0", {"known": ("spans",)}, None),
        (True, "192.0.2.1:4318", {}, None),
    ],
)
def test_timings_that_cannot_come_are_a_fault(source, address, flags, words):
    flags = dict(flags)
    own = {"timings_sources": flags.pop("known", ("after_load",)), "timings_in_files": flags.pop("files", False)}
    engine = type("E", (FakeEngine,), own)()
    launcher = type("L", (FakeLauncher,), flags)()
    settings = fake_job(engine=EngineSettings(name="fake", request_timings=source, spans_address=address)).settings
    faults = timings_faults(settings, engine, launcher, here=True)
    assert len(faults) == (words is not None)
    assert words is None or (f"engine.request_timings={source}: " in faults[0] and words in faults[0])


def test_a_port_for_spans_in_use_is_a_fault():
    engine = type("E", (FakeEngine,), {"timings_sources": ("spans",)})()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        address = f"127.0.0.1:{held.getsockname()[1]}"
        settings = fake_job(engine=EngineSettings(name="fake", request_timings="spans", spans_address=address)).settings
        assert (
            f"engine.spans_address={address}, which is in use"
            in timings_faults(settings, engine, FakeLauncher(), here=True)[0]
        )
        assert timings_faults(settings, engine, FakeLauncher(), here=False) == []
