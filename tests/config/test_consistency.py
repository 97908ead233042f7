from dataclasses import dataclass, field, replace

import pytest

from servebench.config.consistency import section_problems, with_derived_values
from servebench.contracts.settings import (
    EngineSettings,
    GpuSettings,
    LaunchSettings,
    LengthSettings,
    LoadSettings,
    ModelSettings,
    QualitySettings,
    StudySettings,
    WorkloadSettings,
)
from support.settings import run_settings


@dataclass(frozen=True, kw_only=True)
class Address(LaunchSettings):
    base_url: str | None = None
    api_key_header: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    headers_env: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] = field(default_factory=dict)


def sent(**keys):
    return {"workload": WorkloadSettings(name="w", **keys)}


def gateway(**keys):
    return {"launch": Address(name="attach", base_url="http://h/v1", **keys)}


GOOD = run_settings(
    engine=EngineSettings(name="e"),
    workload=WorkloadSettings(name="w"),
    load=LoadSettings(name="l", concurrency=(1, 2)),
)


def consistency_problems(settings, **about):
    """Return the problems of a whole set of settings."""
    return section_problems(vars(settings), **about)


def load(**keys):
    return {"load": LoadSettings(**{"name": "l", "concurrency": (1,), **keys})}


def length(**keys):
    return {"workload": WorkloadSettings(name="w", input_tokens=LengthSettings(**keys))}


def bounded(limit, **lengths):
    return {"engine": EngineSettings(name="e", max_model_len=limit), "workload": WorkloadSettings(name="w", **lengths)}


def test_a_server_may_be_asked_by_another_name():
    """An ingress finds its service by the host of a request."""
    assert not faults_of(**gateway(headers={"Host": "model.ns.example"}))


def faults_of(*, launchable=True, **change):
    settings = replace(GOOD, **change)
    return consistency_problems(settings, launchable=launchable, local=settings.launch.name != "attach")


def address(url):
    return {"launch": Address(name="attach", base_url=url)}


FAULTS = [
    (sent(headers={"Host": "x"}), "workload.headers.Host: servebench sets this header"),
    (sent(headers={"x y": "1"}), "workload.headers.x y: "),
    (sent(headers={"x": "1\r\ny: 2"}), "workload.headers.x: "),
    (sent(headers={"x-api-key": "1"}), "workload.headers.x-api-key: must not hold a secret"),
    (sent(body={"stream": False}), "workload.body.stream: servebench sets this field"),
    (sent(body={"max_tokens": 3}), "workload.body.max_tokens: "),
    (gateway(headers={"accept": "text/html"}), "launch.headers.accept: servebench sets this header"),
    (gateway(headers={"authorization": "Bearer 1"}), "launch.headers.authorization: must not hold a secret"),
    (gateway(headers_env={"a b": "VARIABLE"}), "launch.headers.a b: "),
    (gateway(query={"api-version": "1", "code": "x"}), "launch.query.code: must not hold a secret"),
    (gateway(api_key_header="content-type"), "launch.headers.content-type: "),
    (load(concurrency=None), "load.concurrency or load.rate is required"),
    (load(concurrency=()), "load.concurrency must have at least one level"),
    (load(concurrency=(4, 1, 4)), "load.concurrency has 4 more than once"),
    (load(rate=(1.0,)), "load.rate and load.concurrency cannot be used together"),
    (load(concurrency=None, rate=()), "load.rate must have at least one level"),
    (load(concurrency=None, rate=(2.5, 2.5)), "load.rate has 2.5 more than once"),
    (load(requests=None), "load.requests (a number or auto) or load.duration_s is required"),
    (load(requests=50, duration_s=60.0), "load.requests=50 and load.duration_s=60 cannot be used together"),
    (load(warmup_s=5.0), "load.warmup_s=5 needs a longer load.duration_s"),
    (load(warmup_s=60.0, until="5%"), "load.warmup_s=60 must be shorter than load.max_duration_s=60"),
    (load(warmup_s=60.0, duration_s=60.0, until="5%"), "load.warmup_s=60 must be shorter than load.duration_s=60"),
    (load(warmup_s=60.0, duration_s=60.0), "load.warmup_s=60 must be shorter than load.duration_s=60"),
    ({"quality": QualitySettings(name="mmlu", concurrency=())}, "quality.concurrency must have at least one level"),
    ({"quality": QualitySettings(name="mmlu", concurrency=(4, 4))}, "quality.concurrency has 4 more than once"),
    ({"quality": QualitySettings(name="all", path="x.jsonl")}, "quality.path=x.jsonl needs one scorer"),
    (
        bounded(100, input_tokens=90, output_tokens=11),
        "workload.input_tokens=90 and workload.output_tokens=11 do not fit engine.max_model_len=100; raise it to at least 101",
    ),
    (
        {"gpu": GpuSettings(name="h100", price_usd_per_hour=2.0)},
        "gpu.price_usd_per_hour=2 has no effect with gpu.count=0",
    ),
    (load(concurrency=None, rate=(1e6,)), "load.rate=1e+06 sends more than 10,000,000 requests in 30 s"),
    (bounded(100, input_tokens=101), "workload.input_tokens=101 does not fit engine.max_model_len=100"),
    (
        bounded(100, input_tokens=LengthSettings(kind="uniform", min=200, max=300)),
        "workload.input_tokens=200..300 does not fit engine.max_model_len=100; raise it to at least 300",
    ),
    (
        bounded(100, input_tokens=LengthSettings(kind="normal", mean=300.0, stdev=9.0, min=200), output_tokens=8),
        "workload.input_tokens={kind:normal,mean:300.0,stdev:9.0,min:200} and workload.output_tokens=8 do not fit "
        "engine.max_model_len=100; raise it or lower them",
    ),
    (address(None), "launch.base_url is required with launch=attach"),
    (address(""), "launch.base_url is required with launch=attach"),
    (address("host:8000"), "launch.base_url must be an http(s) URL (got 'host:8000')"),
    (address("ftp://host/v1"), "launch.base_url must be an http(s) URL (got 'ftp://host/v1')"),
    (address("http://"), "launch.base_url must be an http(s) URL (got 'http://')"),
    (address("http://host:80x/v1"), "launch.base_url must be an http(s) URL (got 'http://host:80x/v1')"),
    (
        {"engine": EngineSettings(name="e", tensor_parallel_size=4), "gpu": GpuSettings(name="h100", count=2)},
        "engine.tensor_parallel_size=4 needs 4 GPUs, but gpu.count=2",
    ),
    ({"model": ModelSettings(name=" ")}, "model.name must not be empty (got ' ')"),
    ({"study": StudySettings(name="../x")}, "study.name must be a folder name without / (got '../x')"),
    ({"study": StudySettings(name="..")}, "study.name must be a folder name without / (got '..')"),
]
INVALID = [
    ({"kind": "fixed"}, "needs mean"),
    ({"kind": "uniform", "min": 1}, "needs max"),
    ({"kind": "uniform", "min": 5, "max": 2}, "min=5 must not be above max=2"),
    ({"kind": "normal", "mean": 5.0}, "needs stdev"),
    ({"kind": "lognormal"}, "needs mean and stdev"),
    ({"kind": "lognormal", "mean": 100.0}, "needs stdev"),
    ({"kind": "normal", "mean": 5.0, "stdev": 1.0, "min": 9, "max": 3}, "min=9 must not be above max=3"),
    ({"kind": "normal", "mean": 5.0, "stdev": 1.0, "min": 9}, "mean=5 must not be below min=9"),
    ({"kind": "lognormal", "mean": 5.0, "stdev": 1.0, "max": 3}, "mean=5 must not be above max=3"),
    ({"kind": "fixed", "mean": 5.0, "stdev": 1.0}, "stdev=1 has no effect with kind=fixed"),
    ({"kind": "fixed", "mean": 400.0, "max": 32}, "max=32 has no effect with kind=fixed"),
    ({"kind": "uniform", "min": 1, "max": 9, "mean": 4.0}, "mean=4 has no effect with kind=uniform"),
]
"""Lengths that contradict themselves, wherever a length may stand."""
ALLOWED = [
    {},
    load(duration_s=60.0),
    load(duration_s=60.0, requests=None, warmup_s=30.0),
    load(until="5%", warmup_s=30.0),
    load(workers="auto", repeats=3, order="interleaved"),
    length(kind="fixed", mean=5.0),
    length(kind="uniform", min=2, max=2),
    length(kind="lognormal", mean=5.0, stdev=1.0, max=9),
    bounded(100, input_tokens=90, output_tokens=10),
    bounded(None, input_tokens=90_000),
    bounded(100, input_tokens=LengthSettings(kind="normal", mean=200.0, stdev=90.0)),
    address("http://127.0.0.1:8000/v1"),
    address("https://[::1]/v1"),
    {"engine": EngineSettings(name="e", tensor_parallel_size=4)},
    {"study": StudySettings(name="nightly.2")},
]


@pytest.mark.parametrize(("change", "start"), FAULTS)
def test_impossible_combination_is_told(change, start):
    (line,) = faults_of(**change)
    assert line.startswith(start)
    assert "\n" not in line


@pytest.mark.parametrize(("keys", "said"), INVALID)
def test_a_length_that_contradicts_itself_cannot_exist(keys, said):
    with pytest.raises(ValueError, match=said):
        LengthSettings(**keys)


@pytest.mark.parametrize("change", ALLOWED)
def test_possible_combination_passes(change):
    assert faults_of(**change) == []


@pytest.mark.parametrize(
    ("launch", "launchable", "faults"),
    [
        (LaunchSettings(name="process"), False, 1),
        (Address(name="attach", base_url="http://h/v1"), False, 0),
        (Address(name="attach", base_url="http://h/v1"), True, 0),
        (LaunchSettings(name="process"), True, 0),
    ],
)
def test_an_endpoint_cannot_be_launched(launch, launchable, faults):
    assert len(faults_of(launchable=launchable, launch=launch)) == faults


def test_all_combinations_are_told_at_once():
    settings = replace(
        GOOD, **load(concurrency=None, requests=None), quality=QualitySettings(name="mmlu", concurrency=())
    )
    assert len(consistency_problems(settings)) == 3


def test_checks_of_missing_sections_are_left_out():
    assert len(section_problems({"load": LoadSettings(name="l")}, launchable=False)) == 1


@pytest.mark.parametrize(
    ("count", "asked", "expected"), [(2, None, 2), (4, 2, 2), (1, None, None), (0, None, None), (0, 2, 2)]
)
def test_gpus_set_tensor_parallelism(count, asked, expected):
    engine = EngineSettings(name="e", tensor_parallel_size=asked)
    settings = replace(GOOD, engine=engine, gpu=GpuSettings(name="h100", count=count))
    assert with_derived_values(settings).engine.tensor_parallel_size == expected


@pytest.mark.parametrize(
    ("requests", "duration_s", "expected"), [("auto", 60.0, None), ("auto", None, "auto"), (50, None, 50)]
)
def test_a_timed_point_has_no_number_of_requests(requests, duration_s, expected):
    settings = replace(GOOD, **load(requests=requests, duration_s=duration_s))
    assert with_derived_values(settings).load.requests == expected


@pytest.mark.parametrize(
    ("api", "until", "expected"),
    [
        ("embeddings", "5%", {"e2e_ms_mean": "5%"}),
        ("chat", "5%", "5%"),
        ("rerank", {"e2e_ms_p50": "5%"}, {"e2e_ms_p50": "5%"}),
    ],
)
def test_answers_without_tokens_are_precise_in_e2e(api, until, expected):
    """Unless the user names the metric."""
    found = run_settings(
        workload=WorkloadSettings(name="unique", api=api), load=LoadSettings(name="quick", until=until)
    )
    assert with_derived_values(found).load.until == expected
