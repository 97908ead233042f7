import json
from typing import Any

import pytest

from servebench.config import compose_jobs, settings_from_dict
from servebench.registry.shorthand import RENAMED_KEYS
from servebench.util.errors import ConfigError


@pytest.fixture(scope="module")
def job(registry):
    (job,) = compose_jobs(["engine.threads=2", "gpu.count=2", "load=steady"], registry)
    return job


@pytest.fixture
def resolved(job):
    stored: dict[str, Any] = json.loads(json.dumps(job.resolved))
    return stored


def faults(resolved, registry):
    with pytest.raises(ConfigError) as caught:
        settings_from_dict(resolved, registry)
    return caught.value.faults


def test_a_stored_config_gives_the_same_settings(job, resolved, registry):
    settings = settings_from_dict(resolved, registry)
    assert settings == job.settings
    assert type(settings.engine) is type(job.settings.engine)
    assert settings.engine.tensor_parallel_size == 2
    assert settings.load.requests is None
    assert resolved["load"]["requests"] is None


def test_a_key_that_earlier_versions_stored_stops_no_stored_study(job, resolved, registry):
    resolved["gpu"]["power_w"] = 700.0
    resolved["engine"]["measure_restart"] = False
    for old, now in RENAMED_KEYS.items():
        section, _, key = old.partition(".")
        resolved[section][key] = resolved[section].pop(now.partition(".")[2])
    assert settings_from_dict(resolved, registry) == job.settings


VALUES = [
    ("load", "concurrency", [0], "load.concurrency[0] must be at least 1 (got 0)"),
    ("load", "concurrency", [1, True], "load.concurrency[1] must be an integer (got true)"),
    ("load", "concurrency", "8", "load.concurrency must be a list, as in [A,B] (got '8')"),
    ("load", "concurrency", ["8"], "load.concurrency[0] must be an integer (got '8')"),
    ("load", "concurrency", 2.5, "load.concurrency[0] must be an integer (got 2.5)"),
    ("load", "timeout_s", True, "load.timeout_s must be a time such as 90s or 10m, or a number of seconds (got true)"),
    ("load", "duration_s", "8", "load.duration_s must be a time such as 90s or 10m, or a number of seconds (got '8')"),
    ("load", "cancel_fraction", "8", "load.cancel_fraction must be a number (got '8')"),
    ("load", "timeout_s", 0, "load.timeout_s must be greater than 0 (got 0)"),
    ("load", "timeout_s", float("inf"), "load.timeout_s must be a finite number (got Infinity)"),
    ("load", "requests", 0, "load.requests must be at least 1 or 'auto' (got 0)"),
    ("load", "requests", 10**20, "load.requests must be at most 10,000,000 or 'auto' (got 100000000000000000000)"),
    ("load", "requests", "all", "load.requests must be an integer or 'auto' (got 'all')"),
    ("load", "order", "x", "load.order must be 'ascending', 'shuffled' or 'interleaved' (got 'x')"),
    ("engine", "gpu_memory_fraction", 90, "engine.gpu_memory_fraction must be at most 1 (got 90)"),
    ("engine", "port", 70000, "engine.port must be at most 65535 (got 70000)"),
    ("engine", "reuse", 1, "engine.reuse must be true or false (got 1)"),
    ("engine", "host", None, "engine.host must be text (got null)"),
    ("engine", "env", [], "engine.env must be a mapping (got [])"),
    ("engine", "threads", "two", "engine.threads must be an integer (got 'two')"),
    (
        "engine",
        "extra_args",
        {"_target_": "os.system"},
        "engine.extra_args._target_: unknown key; a config cannot construct objects",
    ),
    ("engine", "extra_args", {1: 2}, "engine.extra_args.1: a key must be text; quote it (got 1)"),
    ("engine", "extra_args", {"a": b"x"}, "engine.extra_args.a must be text, a number, true, false or null (got b'x')"),
    ("engine", "dtype", "???", "engine.dtype is required; set engine.dtype=VALUE"),
    (
        "workload",
        "input_tokens",
        "x",
        "workload.input_tokens must be an integer or a range such as 8..24 or a mapping (got 'x')",
    ),
    (
        "workload",
        "input_tokens",
        {"kind": "fixed", "mean": 0},
        "workload.input_tokens.mean must be at least 1 (got 0)",
    ),
    (
        "model",
        "gguf",
        {"package": "p", "version": "1", "member": "m"},
        "model.gguf.sha256 is required; set model.gguf.sha256=VALUE",
    ),
    ("engine", "prot", 1, "engine.prot: unknown key; did you mean 'engine.port'?"),
    ("launch", "base_url", "x", "launch.base_url: unknown key of launch 'process'; these have it: attach"),
    ("engine", "name", "vlm", "engine=vlm: no such engine; available: llamacpp, openai"),
    ("launch", "name", "proces", "launch=proces: no such launch; did you mean 'process'? available: attach, process"),
]


@pytest.mark.parametrize(("section", "key", "value", "line"), VALUES)
def test_each_wrong_value_is_one_line(section, key, value, line, resolved, registry):
    resolved[section][key] = value
    assert faults(resolved, registry) == [line]


ACCEPTED = [
    ("load", "concurrency", 4, (4,)),
    ("load", "timeout_s", 8, 8.0),
    ("engine", "env", {"OMP_NUM_THREADS": 4}, {"OMP_NUM_THREADS": "4"}),
    ("engine", "extra_args", {"a": [1, None, True], "b": {"c": 1.5}}, {"a": [1, None, True], "b": {"c": 1.5}}),
    ("model", "revision", 1234567, "1234567"),
]


@pytest.mark.parametrize(("section", "key", "value", "expected"), ACCEPTED)
def test_what_is_plainly_meant_is_accepted(section, key, value, expected, resolved, registry):
    resolved[section][key] = value
    resolved["load"].update(duration_s=None, warmup_s=0.0, requests="auto")
    assert getattr(getattr(settings_from_dict(resolved, registry), section), key) == expected


def test_all_faults_are_told_together(resolved, registry):
    resolved["engine"]["port"] = -1
    resolved["load"]["repeats"] = 0
    resolved["lod"] = {}
    del resolved["slo"]
    assert faults(resolved, registry) == [
        "lod: unknown key; did you mean 'load'?",
        "engine.port must be at least 0 (got -1)",
        "load.repeats must be at least 1 (got 0)",
        "slo must be chosen, with slo=NAME",
    ]


def test_a_stored_interpolation_is_refused(resolved, registry):
    resolved["engine"]["dtype"] = "${oc.env:HOME}"
    (line,) = faults(resolved, registry)
    assert line.startswith("engine.dtype must not be an interpolation")


def test_the_input_is_left_alone(resolved, registry):
    resolved["load"]["concurrency"] = 4
    before = json.dumps(resolved)
    settings_from_dict(resolved, registry)
    assert json.dumps(resolved) == before
