"""What limits an engine: each rule by facts on both sides of its threshold, proposals that commands take, and the roofline."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from calibration.limits import BOTTLENECKS, HEALTHY, found_in
from calibration.simulate import Plant
from servebench.analysis import limits
from servebench.analysis.limits.decide import MEMORY_SHARE, find_limit
from servebench.analysis.limits.facts import _stamps
from servebench.analysis.limits.model import LevelFacts, LimitFinding, LimitReason
from servebench.analysis.limits.proposals import default_running_limit, with_proposals
from servebench.analysis.limits.roofline import compute_share, memory_share
from servebench.config import compose_jobs
from servebench.contracts.level import Level
from servebench.contracts.limits import Knob, Limit
from servebench.engine.pool import launch_context
from servebench.registry.registry import registry
from servebench.report.screens.stored import limit_blocks
from servebench.report.wording.limits import REASONS, action_text, limit_lines, statement_of
from servebench.store import studies as read
from support.screens import screen_of
from support.studies import SimulatedEngine, SimulatedLoad

PARTS = {"client": 0.1, "network": 2.0, "queue": 3.0, "prefill": 45.0, "decode": 2500.0}
HEALTHY_FACTS = LevelFacts(
    level=Level(8), engine="vllm", requests=200, ttft_ms=50.0, e2e_ms=2550.0, parts=PARTS, client_ms=0.1, client_cpu=0.1,
    queue_ms=3.0, running=7.9, waiting=0.1, at_most=8.0, at_limit=0.0, running_limit=256.0, itl_ms=20.0,
    input_tokens=256.0, output_tokens=128.0,
    request_rate=3.0, kv_usage=0.1, preempted=0.0, idle=0.0, memory_share=0.4, compute_share=0.1, in_flight=8.0,
)  # fmt: skip


def facts(**changes):
    """Facts with these differences; a part of TTFT is given as `queue=` or `network=` and makes TTFT longer."""
    parts = {name: changes.pop(name) for name in ("queue", "network") if name in changes}
    longer = sum(value - PARTS[name] for name, value in parts.items())
    base = replace(HEALTHY_FACTS, parts={**PARTS, **parts}, queue_ms=parts.get("queue", 3.0),
                   ttft_ms=50.0 + longer, e2e_ms=2550.0 + longer)  # fmt: skip
    return replace(base, **changes)


FULL = {"running": 4.0, "at_most": 4.0, "at_limit": 0.95, "running_limit": 4.0}
CPU = {"other_cores": 1.0}
NO_TIMES = {"parts": {}, "at_most": None, "at_limit": None}
CASES = [
    (Limit.NONE, {}),
    (Limit.CLIENT, {"client_ms": 6.0}),
    (Limit.NONE, {"client_ms": 4.0}),
    (Limit.CLIENT, {"client_cpu": 0.95}),
    (Limit.KV_CACHE, {"preempted": 0.1, "kv_usage": 0.97}),
    (Limit.NONE, {"preempted": 0.02, "kv_usage": 0.97}),
    (Limit.NONE, {"preempted": 0.1, "kv_usage": 0.5}),
    (Limit.KV_CACHE, {"queue": 500.0, "kv_usage": 0.97}),
    # the next prompt of 4,000 tokens does not fit beside three
    (Limit.KV_CACHE, {"queue": 500.0, "kv_usage": 0.8, "running": 3.0, "input_tokens": 4000.0, "output_tokens": 8.0}),
    (Limit.RUNNING, {"queue": 500.0, **FULL}),
    (Limit.TOKEN_BUDGET, {"queue": 500.0, **FULL, "at_limit": 0.5}),
    (Limit.TOKEN_BUDGET, {"queue": 500.0}),
    (Limit.COMPUTE, {"queue": 500.0, "compute_share": 0.5}),
    # shorter than the step of another prompt
    (Limit.NONE, {"queue": 39.0, **FULL}),
    (Limit.QUEUE, {"queue": 500.0, "running_limit": None}),
    (Limit.QUEUE, {"queue": 500.0, "kv_usage": None}),
    (Limit.RUNNING, {**NO_TIMES, "queue_ms": 500.0, "ttft_ms": 600.0, **{**FULL, "at_most": None, "at_limit": None}}),
    (Limit.TOKEN_BUDGET, {"token_budget": 64.0}),
    (Limit.NONE, {"token_budget": 200.0}),
    (Limit.BEFORE_ENGINE, {"network": 60.0}),
    (Limit.NONE, {"network": 9.0}),
    # no longer than two steps: the scheduler sees a request when a step ends, however idle the front end
    (Limit.NONE, {"network": 39.0, "front_end_cores": 0.01, "same_machine": True, **CPU}),
    (Limit.NONE, {"network": 39.0, "front_end_ms": 38.0}),
    (Limit.FRONT_END, {"network": 39.0, "front_end_cores": 0.9, **CPU}),
    (Limit.NETWORK, {"network": 60.0, "front_end_cores": 0.01, **CPU}),
    (Limit.BEFORE_ENGINE, {"network": 60.0, "front_end_cores": 0.01, "same_machine": True, **CPU}),
    (Limit.FRONT_END, {"network": 60.0, "front_end_cores": 0.9, **CPU}),
    # 40 ms of CPU for each of three requests a second
    (Limit.FRONT_END, {"network": 60.0, "front_end_cores": 0.12, **CPU}),
    # one process does everything: its CPU says nothing of the front end
    (Limit.BEFORE_ENGINE, {"network": 60.0, "front_end_cores": 0.9, "other_cores": 0.0}),
    (Limit.NETWORK, {"network": 60.0, "connect_ms": 50.0}),
    (Limit.FRONT_END, {"network": 60.0, "front_end_ms": 50.0}),
    (Limit.NETWORK, {"network": 60.0, "front_end_ms": 5.0, "front_end_cores": 0.9, **CPU}),
    (Limit.LOAD, {"idle": 0.3}),
    (Limit.LOAD, {"open_loop": True, "kept_up": 1.0, "level": Level(rate=3)}),
    (Limit.NONE, {"open_loop": True, "kept_up": 0.9, "level": Level(rate=3)}),
    (Limit.COMPUTE, {"compute_share": 0.41}),
    (Limit.MEMORY_BANDWIDTH, {"memory_share": 0.61}),
    (Limit.NONE, {"memory_share": 0.61, "ttft_ms": 2000.0}),
    (Limit.NONE, {**NO_TIMES, "queue_ms": None, "memory_share": None, "compute_share": None}),
]  # fmt: skip


@pytest.mark.parametrize(("code", "changes"), CASES)
def test_each_rule_needs_its_evidence(code, changes):
    found = find_limit(facts(**changes))
    assert found.code is code, statement_of(found)
    assert (found.improves is None) == (code is Limit.NONE)
    assert all(fact.holds for fact in found.evidence)
    assert (code is Limit.NONE) == (not found.evidence)


def test_a_queue_without_a_time_is_the_full_slots():
    """llama.cpp reports no queue: its requests wait before prefill, while all slots are busy."""
    own = {name: value for name, value in PARTS.items() if name != "queue"}
    waiting = {
        "parts": {**own, "network": 3000.0},
        "queue_ms": None,
        "ttft_ms": 3050.0,
        "kv_usage": None,
        "e2e_ms": 5550.0,
    }
    assert find_limit(facts(**waiting, **FULL)).code is Limit.RUNNING
    assert find_limit(facts(**waiting)).code is Limit.BEFORE_ENGINE


@pytest.mark.parametrize(("count", "said"), [(1, "(from only 1 request)"), (29, "(from only 29 requests)"), (30, None)])
def test_a_finding_of_few_requests_says_so(count, said):
    statement = statement_of(find_limit(facts(queue=500.0, **FULL, requests=count)))
    assert (said is None and "only" not in statement) or statement.endswith(said)


def test_nothing_is_guessed_without_times_and_without_a_gpu():
    said = statement_of(find_limit(facts(**NO_TIMES, queue_ms=None, memory_share=None, compute_share=None)))
    assert "decode is 98% of E2E" in said
    assert "reports no times" in said
    assert "no GPU is described" in said


def test_what_is_unknown_is_said_once_for_all_levels_of_a_run():
    unknown = [find_limit(facts(**NO_TIMES, queue_ms=None, memory_share=None, compute_share=None)) for _ in range(3)]
    assert screen_of(limit_blocks(unknown, complete=True), 200).count("no GPU is described") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "program"),
    [("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "trtllm-serve"), ("llamacpp", "llama-server")],
)
def test_the_knobs_of_an_engine_are_its_own_flags(engine, program):
    """Each override composes, and brings the flag that its proposal names into the engine's command, which lacks it before."""
    words = [
        f"engine={engine}",
        "launch=simulated",
        "gpu=h100",
        "model=qwen2.5-7b-instruct",
        "model.path=/m.gguf",
    ]
    program = f"engine.executable={program}"
    knobs = registry().engine(engine).knobs
    assert default_running_limit(knobs)
    for code in (
        Limit.RUNNING,
        Limit.QUEUE,
        Limit.TOKEN_BUDGET,
        Limit.FRONT_END,
        Limit.KV_CACHE,
        Limit.MEMORY_BANDWIDTH,
        Limit.COMPUTE,
    ):
        config = compose_jobs(words, registry())[0].resolved
        found = with_proposals(find_limit(facts()), config, {Limit.NONE: knobs[code]})
        for knob, proposal in zip(knobs[code], found.proposals, strict=True):
            assert proposal.cost
            assert knob.flag in action_text(proposal)
            assert knob.key or knob.flag not in command_of(*words, program)
            assert proposal.override is None or knob.flag in command_of(*words, program, proposal.override)


def command_of(*words):
    """Return the command of the engine in these words."""
    settings = compose_jobs(words, registry())[0].settings
    context = launch_context(settings, Path("/nonexistent"), lambda _: 1)
    return registry().engine(settings.engine.name).command(context).argv


FRONT = {Limit.FRONT_END: [Knob(key="engine.extra_args.api-server-count", default=1, cost="c")]}


@pytest.mark.parametrize(
    ("changes", "helps"),
    [
        ({"front_end_cores": 0.9, **CPU}, True),
        ({"front_end_cores": 0.12, **CPU}, True),
        ({"front_end_cores": 0.04, **CPU, "same_machine": True}, False),
        ({"front_end_ms": 50.0}, True),
        ({"front_end_ms": 50.0, "front_end_cores": 0.04}, False),
        ({}, False),
    ],
)
def test_more_front_ends_are_proposed_only_where_they_have_work(changes, helps):
    """The scheduler of an idle front end is waited for, and more of them do not help."""
    found = with_proposals(find_limit(facts(network=60.0, **changes)), {}, FRONT)
    assert [one.override for one in found.proposals if one.override] == ["engine.extra_args.api-server-count=2"] * helps


def test_values_follow_from_the_config():
    config = {
        "gpu": {"count": 2},
        "load": {"workers": "auto"},
        "engine": {"max_num_seqs": 4, "gpu_memory_fraction": 0.6, "extra_args": {"b": 64}},
        "model": {"name": "m-fp8"},
    }
    knobs = [
        Knob(key="engine.max_num_seqs", cost="c"),
        Knob(key="engine.max_num_seqs", way="lower", cost="c"),
        Knob(key="engine.gpu_memory_fraction", most=0.95, cost="c"),
        Knob(key="engine.extra_args.b", factor=4.0, cost="c"),
        Knob(key="engine.quantization", way="set", value="fp8", cost="the weights have eight bits already"),
        Knob(key="engine.tensor_parallel_size", cost="nothing known to start from"),
        Knob(key="load.workers", cost="cores"),
        Knob(flag="--elsewhere", way="set", cost="no setting"),
    ]
    found = with_proposals(find_limit(facts(in_flight=16.0, running=4.0)), config, {Limit.NONE: knobs})
    assert [one.override for one in found.proposals] == [
        "engine.max_num_seqs=16", "engine.max_num_seqs=2", "engine.gpu_memory_fraction=0.95", "engine.extra_args.b=256",
        None, "load.workers=2", None,
    ]  # fmt: skip


MAX, LEAST = "engine.max_num_seqs", Knob(key="engine.max_num_seqs", way="lower", cost="c")
TWO_GPUS = Knob(key="engine.tensor_parallel_size", flag="--tp-size", default=1, cost="c")
STEP = Knob(key="engine.extra_args.max-num-batched-tokens", flag="--max-num-batched-tokens", default=2048, cost="c")


@pytest.mark.parametrize(
    ("knob", "config", "override"),
    [
        # nothing is left of it
        (LEAST, {"engine": {"max_num_seqs": 1}}, ()),
        (Knob(key="engine.gpu_memory_fraction", default=0.9, most=0.95, cost="c"), {"engine": {"gpu_memory_fraction": 0.95}}, ()),
        (Knob(key="engine.gpu_memory_fraction", default=0.9, most=0.95, cost="c"), {"engine": {"gpu_memory_fraction": 0.97}}, ()),
        # the config has it by the engine's own flag, in another spelling
        (STEP, {"engine": {"extra_args": {"max_num_batched_tokens": 64}}}, "engine.extra_args.max_num_batched_tokens=128"),
        (Knob(key=MAX, flag="--max-num-seqs", default=256, cost="c"), {"engine": {"extra_args": {"max-num-seqs": 20}}},
         "engine.extra_args.max-num-seqs=40"),
        (Knob(key="engine.extra_args.n_batch", flag="--batch-size", default=2048, cost="c"),
         {"engine": {"extra_args": {"batch-size": 512}}}, "engine.extra_args.batch-size=1024"),
        # the config has as much, or another of the same kind
        (Knob(key="engine.extra_args.kv-cache-dtype", way="set", value="fp8", cost="c"),
         {"engine": {"extra_args": {"kv_cache_dtype": "fp8_e5m2"}}}, ()),
        (Knob(key="engine.extra_args.kv-cache-dtype", way="set", value="fp8", cost="c"),
         {"engine": {"extra_args": {"kv_cache_dtype": "bfloat16"}}}, "engine.extra_args.kv_cache_dtype=fp8"),
        (Knob(key="engine.extra_args.num_postprocess_workers", way="set", value=4, cost="c"),
         {"engine": {"extra_args": {"num_postprocess_workers": 8}}}, ()),
        (Knob(key="engine.quantization", way="set", value="fp8", cost="c"), {"engine": {"quantization": "modelopt"}}, ()),
        # GPUs that the config does not have
        (TWO_GPUS, {"gpu": {"count": 1}}, "gpu.count=2"),
        (TWO_GPUS, {"gpu": {"count": 2}, "engine": {"tensor_parallel_size": 1}}, "engine.tensor_parallel_size=2"),
        # its default is at least what ran
        (Knob(key=MAX, default=8, cost="c"), {}, "engine.max_num_seqs=24"),
        (Knob(key="load.workers", cost="c"), {"load": {"workers": 3}}, "load.workers=6"),
    ],
)  # fmt: skip
def test_nothing_is_proposed_that_the_run_has_already(knob, config, override):
    found = with_proposals(find_limit(facts(at_most=12.0)), config, {Limit.NONE: [knob]})
    assert [one.override for one in found.proposals] == ([] if override == () else [override])


@pytest.mark.parametrize(
    ("level", "load", "override"),
    [
        (Level(rate=2.5), {"rate": [2.5]}, "load.rate=[5]"),
        (Level(rate=2.5), {"rate": [1, 2.5, 8]}, ()),
        (Level(8), {"concurrency": [1, 8]}, "load.concurrency=[16]"),
        (Level(1), {"concurrency": [1, 8]}, ()),
        (Level(4), {"search": {"for": "slo"}}, ()),
        (Level(rate=2.5), {"replay": {"path": "x"}, "time_scale": 1.0}, "load.time_scale=0.5"),
        (Level(), {"replay": {"path": "x"}}, "load.time_scale=0.5"),
        (Level(), {}, None),
    ],
)
def test_a_heavier_load_is_proposed_in_the_words_of_the_load(level, load, override):
    idle = facts(idle=0.5, level=level, open_loop=level.open_loop)
    found = with_proposals(find_limit(idle), {"load": load}, {})
    assert [one.override for one in found.proposals] == ([] if override == () else [override])


def test_settings_of_a_server_that_was_started_elsewhere_are_not_those_of_the_config():
    knobs = {Limit.RUNNING: [Knob(key=MAX, flag="--max-num-seqs", default=256, cost="c")]}
    full = facts(queue=500.0, **FULL)
    (proposal,) = with_proposals(find_limit(full), {}, knobs, attached=True).proposals
    assert (proposal.override, action_text(proposal)) == (None, "raise --max-num-seqs of the server")


def test_the_roofline_is_that_of_the_data_sheet():
    """7 billion parameters of two bytes at 1,400 GB/s take 10 ms; 8 requests of 1,000 tokens read 2 more."""
    shape = {"name": "m", "parameters_b": 7.0, "layers": 32, "kv_heads": 8, "head_dim": 128}
    gpu = {"bandwidth_gb_s": 1400.0, "bf16_tflops": 100.0, "fp8_tflops": 200.0, "count": 1}
    config = {"model": shape, "gpu": gpu, "engine": {}}
    means = {"itl_ms_mean": 20.0, "request_throughput_req_s": 4.0, "e2e_ms_mean": 2100.0, "ttft_ms_mean": 100.0,
             "input_tokens_mean": 900.0, "output_tokens_mean": 200.0}  # fmt: skip
    pace = means.get
    context = 8 * 1000 * 2 * 32 * 8 * 128 * 2
    assert memory_share(config, pace) == pytest.approx((14e9 + context) / (1400e9 * 0.02))
    assert compute_share(config, pace) == pytest.approx(2 * 7e9 * 1100 * 4 / 100e12)
    fp8 = {**config, "engine": {"quantization": "fp8", "tensor_parallel_size": 2}}
    assert compute_share(fp8, pace) == pytest.approx(2 * 7e9 * 1100 * 4 / 400e12)
    assert memory_share(fp8, pace) == pytest.approx((7e9 + context) / (2800e9 * 0.02))
    for gone in ("bandwidth_gb_s", "count"):
        assert memory_share({**config, "gpu": {**gpu, gone: None}}, pace) is None
    assert compute_share({**config, "model": {"name": "m"}}, pace) is None
    # more than the peak: another GPU, or several tokens a step
    assert memory_share(config, {**means, "itl_ms_mean": 5.0}.get) is None
    assert compute_share(config, {**means, "request_throughput_req_s": 9.0}.get) is None


@pytest.mark.slow
@pytest.mark.parametrize("one", [*BOTTLENECKS[:1], *BOTTLENECKS[5:7], *HEALTHY[2:3]], ids=lambda one: one.name)
def test_a_planted_bottleneck_is_named(one):
    """The rest of the table, and 20 seeds of each, are made by `make calibrate ARGS="--only 'limit_*'"`."""
    run, (found,) = found_in(one.plant(), 1)
    assert found.code in one.codes, statement_of(found)
    assert (run.rows[0].telemetry_samples or 0) > 5
    assert all(fact.at_least != MEMORY_SHARE for fact in found.evidence)


@pytest.mark.parametrize(("lost", "at_most"), [(0, 4.0), (1, 4.0), (10, None)])
def test_times_of_some_requests_do_not_say_how_many_run(lost, at_most):
    """Four at once of 40, of which spans were lost: without half of them only two would seem to run."""
    ms = 1_000_000
    sent = [25 * ms * index for index in range(40)]
    times = {
        "scheduled_ns": sent, "sent_ns": sent, "first_event_ns": [at + 20 * ms for at in sent],
        "ended_ns": [at + 100 * ms for at in sent],
        "network_ms": 0.0, "server_queue_ms": 0.0, "server_prefill_ms": 20.0, "server_kv_transfer_ms": np.nan,
        "server_decode_ms": 80.0,
    }  # fmt: skip
    requests = pd.DataFrame({"point": "c4-r0", "outcome": "ok", "warmup": False, "filler": False, **times})
    requests.loc[requests.index[20 : 20 + lost], ["network_ms", "server_prefill_ms", "server_decode_ms"]] = None
    found = _stamps(
        SimpleNamespace(point="c4-r0", window_ns=(100 * ms, 900 * ms), left_out=[], not_counted=[]), requests
    )
    assert found.get("at_most") == at_most
    assert found["idle"] == 0.0


def test_what_a_disturbed_stretch_made_late_is_not_the_client():
    """The stamps are those of the requests of which the point's numbers are."""
    ms = 1_000_000
    sent = [25 * ms * index for index in range(40)]
    late = [500 * ms <= at < 600 * ms for at in sent]
    times = {
        "scheduled_ns": [at - 300 * ms * slow for at, slow in zip(sent, late, strict=True)], "sent_ns": sent,
        "first_event_ns": [at + 20 * ms for at in sent], "ended_ns": [at + 24 * ms for at in sent],
    }  # fmt: skip
    requests = pd.DataFrame({"point": "c1-r0", "outcome": "ok", "warmup": False, "filler": False, **times})
    row = SimpleNamespace(point="c1-r0", window_ns=(0, 1000 * ms), left_out=[], not_counted=[])
    assert _stamps(row, requests)["client_ms"] == pytest.approx(30.0)
    row.left_out = [(490 * ms, 610 * ms)]
    assert _stamps(row, requests)["client_ms"] == 0.0


@pytest.mark.parametrize(
    ("words", "override"),
    [
        (["load=rate", "load.rate=[20]"], "load.rate=[40]"),
        (["load.concurrency=[8]"], "load.concurrency=[16]"),
        (["load=replay", "workload=trace"], "load.time_scale=0.5"),
        ([], "load.workers=2"),
    ],
)
def test_what_is_proposed_of_the_load_composes(words, override):
    base = ["engine=vllm", "launch=simulated", "model=qwen2.5-7b-instruct"]
    key, _, value = override.partition("=")
    settings = compose_jobs([*base, *words, override], registry())[0].resolved
    assert str(settings["load"][key.removeprefix("load.")]).replace(".0", "") == value


def test_every_run_of_a_study_has_a_line(make_study):
    """In the order of the study: runs without a limit, and those that were not looked at, were missing without a word."""
    engines = [SimulatedEngine(name=f"e{number}") for number in range(limits.RUNS_MAX + 1)]
    runs = read.load_study(make_study(*((one, SimulatedLoad(levels=(1, 8), requests=20)) for one in engines))).runs

    late, full, none = ({"client_ms": 6.0}, {"queue": 500.0, **FULL}, {})
    found = [
        (name, find_limit(facts(level=Level(users), **changes)))
        for name, users, changes in (("e1", 1, late), ("e1", 8, full), ("e0", 1, late), ("e2", 8, none))
    ]
    summary = limits.summary_of(runs, found)
    assert [(label, one.code, one.level) for label, one in summary.first] == [
        ("e0", Limit.CLIENT, Level(1)),
        ("e1", Limit.RUNNING, Level(8)),
    ]
    assert [(label, one.code) for label, one in summary.more] == [("e1", Limit.CLIENT)]
    assert (summary.without, summary.unread) == (("e2", "e3", "e4", "e5"), ("e6",))
    lines = [line.partition(" ")[2].partition(":")[0] for line in limit_lines(summary)]
    assert lines == [
        "of e0 at 1 user",
        "of e1 at 8 users",
        "none found for e2, e3, e4, e5",
        "'servebench show RUN' has those of e6",
        "of e1 at 1 user",
    ]
    assert limit_lines(limits.summary_of(runs[:2], [])) == []


@pytest.mark.parametrize("reason", LimitReason)
def test_each_reason_has_a_sentence(reason):
    assert REASONS[reason](LimitFinding(facts=facts(token_budget=64.0), reason=reason, part_ms=9.0))


@pytest.mark.parametrize("network_ms", [0.0, 50.0])
def test_a_simulated_engine_is_limited_by_a_network_only_if_one_is_planted(network_ms):
    """A request waits until a step ends, which is a third of a short TTFT."""
    words = (
        "engine=vllm",
        "workload=rag_prefix",
        "load.concurrency=[8]",
        "load.requests=200",
        "telemetry.enabled=true",
    )
    _, found = found_in(Plant(words=words).planted(network_ms=network_ms), 3)
    assert [one.code is Limit.NETWORK for one in found] == [network_ms > 0]
    actions = [action_text(proposal) for one in found for proposal in one.proposals]
    assert ("use a client and a server on one network" in actions) == (network_ms > 0)
