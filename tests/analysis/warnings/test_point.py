from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from servebench.analysis.warnings.catalog import CATALOG, explain
from servebench.analysis.warnings.point import point_warnings, wrong_gpu
from servebench.contracts.exchange import PhaseReport, StopReason
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Doubt, Point, Record
from servebench.contracts.settings import GpuSettings, LaunchSettings, LoadSettings, RunSettings, WorkloadSettings
from servebench.registry.registry import registry
from support.records import phase_facts, phase_report, point_evidence, record
from support.settings import run_settings

ROW: dict[str, Any] = {
    "workload": "unique", "concurrency": 4, "rate": None, "requests_planned": 200, "average_in_flight": 3.98,
    "level_reached": True, "window_s": 30.0, "ttft_ms_n": 197, "ttft_ms_p50": 50.0, "lateness_ms_p99": 0.4,
    "client_cpu_share": 0.2, "stamp_source": "kernel", "loop_lag_ms_p99": 0.3, "prefix_cache_hit_rate": 0.01, "events": 20_000,
    "events_merged": 3, "emulated": False,
}  # fmt: skip


INTERVALS = {"output_throughput_tok_s_low": 95.0, "output_throughput_tok_s_high": 105.0, "ttft_ms_p50_low": 48.0}


def make(number: int = 0, **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "sent_ns": number * 1000, "scheduled_ns": number * 1000, "event_ns": [10, 20], "ended_ns": 30,
        "output_tokens": 128, "asked_output_tokens": 128, "finish_reason": "length",
    }  # fmt: skip
    return record(f"r{number}", **(fields | changes))


def test_reasoning_that_was_not_sent_is_a_mark() -> None:
    """It is part of the requested length, and the engine's own counter has it."""
    hidden = records(of=10, bad=10, output_tokens=28, hidden_tokens=100)
    found = {
        doubt.code: doubt for doubt in judge({"server_generation_tokens": 1280.0, "output_tokens_total": 280}, hidden)
    }
    assert found["hidden_tokens"].mark
    assert "10 of 10" in found["hidden_tokens"].message
    assert not {"short_answers", "tokens_disagree"} & found.keys()


def records(bad: int = 0, of: int = 200, **changes: Any) -> list[Record]:
    return [make(n, **(changes if n < bad else {})) for n in range(of)]


def test_few_events_that_share_a_read_are_a_mark() -> None:
    """They change the p99 of ITL and nothing that a screen shows."""
    (doubt,) = judge({"events_merged": 201})
    assert (doubt.code, doubt.mark) == ("merged_events", True)


REFUSALS = (
    {"outcome": "http_error", "http_status": 429, "error": "HTTP 429: slow down"},
    {"outcome": "http_error", "http_status": 503, "error": "HTTP 503: slow down"},
    {"outcome": "stream_error", "http_status": 200, "error": "slow down", "error_code": "rate_limit_error"},
)


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize(("bad", "verdict"), [(0, "valid"), (10, "doubtful"), (11, "void")])
def test_a_server_that_refuses_requests(bad: int, verdict: str, refusal: dict[str, Any]) -> None:
    """Refusals are a warning of their own; more than 5% of them leave nothing to compare."""
    refusal = {**refusal, "retry_after_s": 2.0}
    doubts = judge(of=records(bad, **refusal, event_ns=[], output_tokens=None, finish_reason=None))
    assert Point(row=PointRow(), doubts=doubts).verdict == verdict
    assert [doubt.code for doubt in doubts] == ["rate_limited"] * (bad > 0)
    assert all("Retry-After 2 s" in doubt.message and "slow down" in doubt.message for doubt in doubts)


@pytest.mark.parametrize("of", [[], records(1, of=100, outcome="http_error", http_status=503)])
def test_a_point_that_a_busy_server_ended_is_void(of: list[Record]) -> None:
    ended = report(stopped=StopReason.BUSY, error="HTTP 503")
    (doubt,) = [one for one in judge(of=of, reported=ended) if one.code == "rate_limited"]
    assert doubt.void


def test_other_failures_beside_refusals() -> None:
    refused = records(4, of=100, outcome="http_error", http_status=429, error="HTTP 429")
    broken = records(6, of=100, outcome="reset", error="reset")
    assert {"rate_limited", "errors"} <= {doubt.code for doubt in judge(of=[*refused, *broken])}


@pytest.mark.parametrize(("status", "remedy"), [(400, "--preview"), (500, "lower the load")])
def test_a_lower_load_does_not_help_requests_that_do_not_fit(status: int, remedy: str) -> None:
    failed = records(4, of=100, outcome="http_error", http_status=status, error=f"HTTP {status}: no")
    (doubt,) = [one for one in judge(of=failed) if one.code == "errors"]
    assert remedy in doubt.remedy


def report(**changes: Any) -> PhaseReport:
    return phase_report(**({"planned": 200, "sent": 200, "elapsed_s": 30.0, "cpu_s": 6.0} | changes))


def settings(**workload: Any) -> RunSettings:
    return run_settings(workload=WorkloadSettings(name="unique", **workload))


def judge(
    row: dict[str, Any] | None = None,
    of: list[Record] | None = None,
    reported: PhaseReport | None = None,
    run: RunSettings | None = None,
    engine: str = "vllm",
    **more: Any,
) -> tuple[Doubt, ...]:
    return point_warnings(
        point_evidence(
            engine=registry().engine(engine),
            row=PointRow(**ROW | (row or {})),
            records=records() if of is None else of,
            report=reported or report(),
            settings=run or settings(exact_output=True),
            facts=phase_facts(**more),
        )
    )


@pytest.mark.parametrize(
    ("half", "words"),
    [
        (30, ["throughput is good to ±30%", "±10% takes about 1,800 requests"]),
        (70, ["±70%", "would take too long"]),
        (10.3, ["throughput is good to ±10.3%; ±10% takes"]),
        (10.02, ["throughput is good to ±10.02%; ±10% takes"]),
    ],
)
def test_what_is_less_precise_than_asked_says_what_is_usable(half: float, words: list[str]) -> None:
    """And asks nobody to wait for half an hour."""
    row = {
        "output_throughput_tok_s_low": 100.0 - half, "output_throughput_tok_s_high": 100.0 + half,
        "ttft_ms_p50_low": 48.0, "ttft_ms_p50_high": 52.0,
    }  # fmt: skip
    run = run_settings(workload=WorkloadSettings(name="unique"), load=LoadSettings(name="quick", until="10%"))
    (found,) = (one for one in judge(row, run=run) if one.code == "not_precise")
    for said in (*words, "TTFT p50 is good to ±4%"):
        assert said in found.message


def test_a_sound_point_has_no_warning() -> None:
    """Enough requests, long enough, the level held, lengths held, the client idle: valid."""
    assert judge() == ()
    assert Point(row=PointRow(**ROW), doubts=judge()).verdict == "valid"


def case(
    code: str = "",
    words: Sequence[str] = (),
    *,
    void: bool = False,
    of: list[Record] | None = None,
    reported: PhaseReport | None = None,
    **row: Any,
) -> tuple[dict[str, Any], list[Record] | None, PhaseReport | None, str, bool, Sequence[str]]:
    """Return a point with these columns, records and report, and its one warning with words of the message."""
    return row, of, reported, code, void, words


CASES = {
    "fewer requests than streams": case("level_not_reached", ["50 requests", "concurrency 128", "44.2"], void=True,
        concurrency=128, requests_planned=50, average_in_flight=44.2, level_reached=False),
    "average too low": case("level_not_reached", ["94.9", "94.9%", "concurrency 100"], void=True, concurrency=100,
        average_in_flight=94.9),
    "never there though near": case("level_not_reached", ["97 requests", "100"], void=True, concurrency=100,
        average_in_flight=97.0, level_reached=False),
    "sessions pause": case("level_not_reached", ["40%", "5 s"], void=True, concurrency=10,
        average_in_flight=4.0,
        of=[make(n, session_id=f"s{n % 10}", sent_ns=n // 10 * 6 * 10**9, ended_ns=(n // 10 * 6 + 1) * 10**9)
            for n in range(200)]),
    "rate not held": case("level_not_reached", ["200 requests", "19.9 s", "10/s", "21.9 s"], void=True,
        of=[make(n, scheduled_ns=n * 100_000_000, sent_ns=n * 110_000_000) for n in range(200)], concurrency=None,
        rate=10.0),
    "in step": case("lock_step", ["4 streams", "90%", "TTFT p50 of 50 ms"], lock_step=0.9),
    "few": case("too_few_requests", ["29"], ttft_ms_n=29),
    "few for an interval": case("too_few_requests", ["11"], ttft_ms_n=11, **INTERVALS),
    "none": case("too_few_requests", ["no request"], void=True, ttft_ms_n=0, e2e_ms_n=0),
    "none with content": case("too_few_requests", ["0 requests"], ttft_ms_n=0, e2e_ms_n=200),
    "short": case("too_short", ["4.49 s", "4.5 s"], window_s=4.49),
    "a queue that grows": case("not_stationary", ["queue grew", "30%"], concurrency=None, rate=10.0, kept_up=0.7),
    "worker died": case("worker_died", ["SIGKILL", "17 of 200"], void=True,
        reported=report(stopped="worker_died", sent=17, error="a load worker died by signal SIGKILL")),
    "client not exact enough": case("client_bound", ["ITL", "1.2 ms", "10 ms"], client_error_ms_itl=1.2, itl_ms_p50=10.0),
    "one error": case("errors", ["1 of 200", "0.5%", "1 timeout", "no end after 600 s"],
        of=records(1, outcome="timeout", error="no end after 600 s")),
    "half failed": case("errors", ["100 of 200", "50%", "HTTP 503"], void=True,
        of=records(100, outcome="http_error", error="HTTP 503: busy")),
    "engine died": case("engine_died", ["17 of 200"], void=True, reported=report(stopped="engine_died", sent=17)),
    "interrupted": case("interrupted", ["150 of 200", "4"], of=records(4, outcome="cancelled"),
        reported=report(stopped="interrupt", sent=150)),
    "late": case("client_bound", ["5.1 ms late", "50 ms"], concurrency=None, rate=100.0, lateness_ms_p99=5.1),
    "late, no TTFT": case("client_bound", ["5.1 ms late"], concurrency=None, rate=100.0, lateness_ms_p99=5.1, ttft_ms_p50=None),
    "streams wait for the client": case("client_bound", ["5.1 ms late", "500 ms"], lateness_ms_mean=5.1, e2e_ms_mean=500.0),
    "client busy": case("client_bound", ["91%"], client_cpu_share=0.91),
    "queues": case("client_bound", ["70000 bytes"], receive_queue_bytes_max=70_000),
    "not freed": case("cancelled_not_freed", ["7.25"], cancelled_freed=False, server_excess_requests_mean=7.25),
    "loop late": case("client_bound", ["5.5 ms"], loop_lag_ms_p99=5.5, stamp_source="user"),
    "clock stepped": case("clock_stepped", ["-2.5 ms"], void=True, reported=report(clock_step_ns=-2_500_000)),
    "no usage": case("tokens_disagree", ["12 of 200", "usage"], of=records(12, counted_by="tokenizer")),
    "no count at all": case("tokens_disagree", ["3 of 200"], of=records(3, counted_by=None, output_tokens=None)),
    "usage and ids differ": case("tokens_disagree", ["3 of 200", "128", "120", "r0"], of=records(3, event_tokens=[60, 60])),
    "usage of nothing": case("tokens_disagree", ["usage 0", "events 1"],
        of=records(3, output_tokens=0, asked_output_tokens=None)),
    "short answers": case("short_answers", ["3 of 201", "5 tokens", "128"],
        of=[*records(2, output_tokens=100), make(output_tokens=5)]),
    "more hits than a chat template's": case("cache_contaminated", ["30%"],
        of=records(200, of=200, prompt_tokens=158, planned_prompt_tokens=128), prefix_cache_hit_rate=0.3),
    "cache hits": case("cache_contaminated", ["92%"], prefix_cache_hit_rate=0.92),
    "hits of another workload": case("cache_contaminated", ["98%"], workload="short", prefix_cache_hit_rate=0.98,
        prefix_cache_hit_rate_ideal=0.01),
    "hits that were not reached": case("hit_rate_missed", ["80.0%", "75.0%"],
        prefix_cache_hit_rate_asked=0.8, prefix_cache_hit_rate=0.75, e2e_ms_mean=99.0),
    "hits that nobody counts": case("hit_rate_missed", ["50.0%"], prefix_cache_hit_rate_asked=0.5, e2e_ms_mean=99.0),
    "a wide interval": case("imprecise", ["±67.5%", "13.0 to 67.0 tok/s"], output_throughput_tok_s=40.0,
        output_throughput_tok_s_low=13.0, output_throughput_tok_s_high=67.0),
    "merged": case("merged_events", ["2001 of 20000", "10%"], events_merged=2001),
    "emulated": case("emulated", ["emulated"], emulated=True),
}  # fmt: skip


@pytest.mark.parametrize(("row", "of", "reported", "code", "void", "words"), CASES.values(), ids=CASES)
def test_each_warning_alone(
    row: dict[str, Any], of: list[Record] | None, reported: PhaseReport | None, code: str, void: bool, words: list[str]
) -> None:
    """One thing wrong gives one warning, with its figures, a remedy, and the right weight."""
    found = judge(row, of, reported)
    assert [(doubt.code, doubt.void) for doubt in found] == [(code, void)]
    for word in words:
        assert word in found[0].message
    assert found[0].remedy
    # a mark leaves the verdict alone
    light = "valid" if code in ("emulated", "imprecise") else "doubtful"
    assert Point(row=PointRow(**ROW), doubts=found).verdict == ("void" if void else light)


FINE = {
    "95 % of the level": case(concurrency=100, average_in_flight=95.0),
    "as many requests as streams": case(concurrency=200, average_in_flight=199.0),
    "rate held": case(of=[make(n, scheduled_ns=n * 100_000_000, sent_ns=n * 104_000_000) for n in range(200)],
        concurrency=None, rate=10.0),
    "rate with one request": case(of=[make(0)], concurrency=None, rate=10.0),
    "a queue of random arrivals": case(concurrency=None, rate=10.0, kept_up=0.8),
    "30 requests": case(ttft_ms_n=30),
    "5 s": case(window_s=5.0),
    "4 s in a slice": case(window_s=4.0, slice_group="a"),
    "late under a tenth of a long TTFT": case(lateness_ms_p99=90.0, ttft_ms_p50=1000.0),
    "a millisecond late against a tiny TTFT": case(lateness_ms_p99=1.0, ttft_ms_p50=2.0),
    "loop late, kernel stamps": case(loop_lag_ms_p99=50.0),
    "no lag known": case(loop_lag_ms_p99=None, client_cpu_share=None, lateness_ms_p99=None),
    "counted by token ids": case(of=records(200, counted_by="token_ids")),
    "an end token without an event": case(of=records(200, event_tokens=[64, 63])),
    "1 % of answers short": case(of=records(2, output_tokens=100)),
    "length not known": case(of=records(200, asked_output_tokens=None)),
    "hits of another workload": case(workload="rag_prefix", prefix_cache_hit_rate=0.9),
    "hits of a chat template": case(of=records(200, of=200, prompt_tokens=158, planned_prompt_tokens=128),
        prefix_cache_hit_rate=0.13),
    "hits of an empty window": case(prefix_cache_hit_rate_asked=0.5, e2e_ms_mean=None),
    "hits unknown": case(prefix_cache_hit_rate=None),
    "no events": case(events=0, events_merged=0),
    "a quarter to each side": case(output_throughput_tok_s=40.0, output_throughput_tok_s_low=30.0,
        output_throughput_tok_s_high=50.0),
    "no interval": case(output_throughput_tok_s=40.0, output_throughput_tok_s_low=None, output_throughput_tok_s_high=None),
    "failed warm-up": case(of=[*records(), make(999, warmup=True, outcome="timeout")]),
}  # fmt: skip


@pytest.mark.parametrize(("row", "of", "reported"), [one[:3] for one in FINE.values()], ids=FINE)
def test_values_just_inside_the_limits_give_no_warning(
    row: dict[str, Any], of: list[Record] | None, reported: PhaseReport | None
) -> None:
    """The other side of each limit, and figures that do not exist, give no warning."""
    assert judge(row, of, reported) == ()


def test_lengths_are_not_checked_without_exact_output() -> None:
    """Without exact_output an answer may end when it likes."""
    assert judge(of=records(100, output_tokens=9), run=settings(exact_output=False)) == ()


def test_an_endpoint_that_takes_no_lengths_is_right_for_its_own() -> None:
    (doubt,) = judge(of=records(100, output_tokens=9), engine="openai")
    assert (doubt.code, doubt.mark) == ("short_answers", True)


def test_an_approximate_tokenizer_is_named() -> None:
    """The warning names the tokenizer that sized the prompts."""
    (doubt,) = judge(tokenizer_exact=False, tokenizer_name="approximate (4 characters a token)")
    assert (doubt.code, doubt.mark) == ("prompt_size_approximate", False)
    assert "approximate (4 characters a token)" in doubt.message


def test_a_server_that_counts_its_prompts_makes_an_approximate_size_no_doubt() -> None:
    (doubt,) = judge({"input_tokens_mean": 130.0}, tokenizer_exact=False, tokenizer_name="approximate")
    assert (doubt.code, doubt.mark) == ("prompt_size_approximate", True)


def test_a_point_where_nothing_was_sent() -> None:
    """No figures at all: void, and every check still works."""
    row = dict.fromkeys(ROW) | {"workload": "unique", "concurrency": 4, "requests_planned": 50, "ttft_ms_n": 0,
                                "events": 0, "events_merged": 0, "emulated": False}  # fmt: skip
    found = judge(row, [make(n, sent_ns=None, outcome="refused", error="refused") for n in range(50)])
    codes = [doubt.code for doubt in found]
    assert codes == ["level_not_reached", "too_few_requests", "too_short", "errors"]
    assert Point(row=PointRow(**row), doubts=found).verdict == "void"
    assert judge(row, [])[0].code == "level_not_reached"


def test_warnings_come_in_a_fixed_order() -> None:
    """The order is that of CHECKS."""
    found = judge({"emulated": True, "window_s": 1.0, "events_merged": 9_000}, reported=report(clock_step_ns=7_000_000))
    assert [doubt.code for doubt in found] == ["too_short", "clock_stepped", "merged_events", "emulated"]


@pytest.mark.parametrize(
    ("bad", "changes", "reported"),
    [
        (200, {"event_ns": [20], "first_event_ns": 20}, "200 of 200 answers of 8 tokens or more (100%)"),
        (3, {"event_ns": [20, 20], "first_event_ns": 20}, "3 of 200 answers of 8 tokens or more (1.5%)"),
        (2, {"event_ns": [20], "first_event_ns": 20}, None),
        (200, {"event_ns": [20], "first_event_ns": 20, "output_tokens": 7, "asked_output_tokens": 7}, None),
        (200, {"event_ns": [20], "first_event_ns": 20, "output_tokens": None, "counted_by": None}, None),
    ],
)
def test_answers_that_arrive_at_once_were_not_streamed(bad: int, changes: dict[str, Any], reported: str | None) -> None:
    """A short answer may be one step of the engine; answers without a token count are not judged."""
    found = [doubt.message for doubt in judge(of=records(bad, **changes)) if doubt.code == "not_streamed"]
    assert found == [] if reported is None else found[0].startswith(reported)


def test_one_warning_names_every_cause_in_the_client() -> None:
    """They are joined with semicolons."""
    (doubt,) = judge(
        {
            "client_cpu_share": 0.99,
            "loop_lag_ms_p99": 8.0,
            "lateness_ms_mean": 40.0,
            "e2e_ms_mean": 400.0,
            "stamp_source": "user",
        }
    )
    assert doubt.message.count(";") == 2


def test_every_message_is_a_lower_case_line_without_a_full_stop() -> None:
    """Warnings read like the other lines of the output."""
    for row, of, reported, *_ in CASES.values():
        for doubt in judge(row, of, reported):
            for line in (doubt.message, doubt.remedy):
                assert "\n" not in line
                assert not line.endswith(".")
                assert not line[0].isupper()


@pytest.mark.parametrize(
    ("counted", "doubtful"), [(None, False), (3200, False), (3264, False), (4000, True), (2000, True)]
)
def test_the_engines_own_counter_is_compared_with_its_answers(counted, doubtful):
    row = {"server_generation_tokens": counted, "output_tokens_total": 3200}
    found = judge(row, records(of=25), run=settings())
    assert ("tokens_disagree" in [doubt.code for doubt in found]) == doubtful


@pytest.mark.parametrize(("counted", "doubtful"), [(3200, False), (3600, False), (3900, True), (3000, True)])
def test_tokens_of_cancelled_fillers_may_be_in_the_engines_counter_or_not(counted, doubtful):
    """vLLM counts them, llama.cpp does not."""
    row = {"events": 3200, "server_generation_tokens": counted, "output_tokens_total": 3200}
    fillers = [replace(make(n), request_id=f"f{n}", filler=True, event_ns=list(range(100))) for n in range(4)]
    found = judge(row, [*records(of=25), *fillers], run=settings())
    assert ("tokens_disagree" in [doubt.code for doubt in found]) == doubtful


@pytest.mark.parametrize(
    ("launch", "gpu", "count", "there", "wrong"),
    [
        ("process", "none", 0, ["NVIDIA H100 80GB HBM3"], False),
        ("process", "h100", 1, ["NVIDIA H100 80GB HBM3"], False),
        ("process", "rtx4090", 1, ["NVIDIA GeForce RTX 4090"], False),
        ("process", "h100", 2, ["NVIDIA H100 80GB HBM3"], True),
        ("docker", "h100", 1, ["NVIDIA A100-SXM4-80GB"], True),
        ("process", "h100", 1, [], True),
        ("process", "a100-sxm4-80gb-mig-1g.10gb", 1, ["NVIDIA A100-SXM4-80GB"], False),
        ("process", "rtx-a5000", 1, ["NVIDIA RTX A5000"], False),
    ],
)
def test_the_configured_gpu_must_be_the_drivers(launch, gpu, count, there, wrong):
    asked = replace(settings(), launch=LaunchSettings(name=launch), gpu=GpuSettings(name=gpu, count=count))
    assert (wrong_gpu(asked, there) is not None) == wrong


@pytest.mark.parametrize(
    ("api", "counted", "doubtful"),
    [
        ("completions", 11, False),
        ("completions", 13, True),
        ("completions", 6, True),
        ("chat", 60, False),
        ("chat", 6, True),
    ],
)
def test_prompts_of_an_unplanned_length(api: str, counted: int, doubtful: bool) -> None:
    """Except for the chat template, and only where the plan is exact."""
    asked, run = records(5, prompt_tokens=counted), settings(api=api)
    found = judge(of=asked, run=run)
    assert ["planned 10, counted" in d.message for d in found if d.code == "tokens_disagree"] == [True] * doubtful
    guessed = judge(of=asked, run=run, tokenizer_exact=False)
    assert not [d for d in guessed if d.code == "tokens_disagree"]


def test_the_catalog_explains_every_code() -> None:
    """Also a code of another version. Only a mark may need no action."""
    assert all(code == kind.code and kind.meaning and (kind.remedy or kind.mark) for code, kind in CATALOG.items())
    assert CATALOG["too_short"].remedy in explain("too_short")
    assert "unknown" in explain("from_the_future")


def timed(residual_ms: float, bad: int = 200) -> list[Record]:
    """Answers of 1 s, of which the engine's times leave over so much in the first `bad`, and 1% in the others."""
    times = {"event_ns": [10**8, 10**9], "ended_ns": 10**9, "sent_ns": 0, "scheduled_ns": 0}
    return [make(n, **times, residual_ms=residual_ms if n < bad else 10.0) for n in range(200)]


def test_few_requests_with_intervals_are_not_doubtful() -> None:
    """The intervals say what few requests leave open."""
    assert "too_few_requests" not in {doubt.code for doubt in judge({"ttft_ms_n": 24, **INTERVALS})}


def waited(network_ms: float, **more: float) -> list[Record]:
    """Answers of 1 s that waited so long before the engine's queue; its mean ITL is 40 ms."""
    return [replace(one, residual_ms=network_ms, network_ms=network_ms, **more) for one in timed(0.0)]


def test_a_wait_for_the_end_of_a_step_is_not_missing() -> None:
    """It is no longer than a step, and seen only where the residual has what is before the first token."""

    def marked(requests: list[Record]) -> bool:
        return "timings_do_not_add_up" in {doubt.code for doubt in judge({"itl_ms_mean": 40.0}, requests)}

    assert not marked(waited(85.0, server_queue_ms=0.0))
    assert marked(waited(95.0, server_queue_ms=0.0))
    assert marked(waited(85.0))
    assert marked(waited(85.0, server_queue_ms=0.0, server_e2e_ms=900.0))


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        (timed(60.0), "in 200 of 200 requests more than 5%"),
        (timed(60.0), "mostly after the first token"),
        (timed(60.0)[:2], None),
        (timed(600.0, bad=17), "in 17 of 200 requests more than 5%"),
        (timed(600.0, bad=16), None),
        (timed(50.5), None),
        (timed(-1.4), None),
        (timed(-3.0, bad=3), "in 3 of 200 requests the engine's times are longer than the client's, by up to 3.0 ms"),
        (records(), None),
    ],
)
def test_timings_that_do_not_add_up_are_a_mark(requests: list[Record], words: str | None) -> None:
    """More than 5% (and 1 ms) of all time, or negative beyond the clocks' error in 1% of the requests; unknown is nothing."""
    found = {doubt.code: doubt for doubt in judge({}, requests)}.get("timings_do_not_add_up")
    assert (found is None) is (words is None)
    if found is not None and words is not None:
        assert words in found.message
        assert found.mark


@pytest.mark.parametrize(("cache", "best", "warned"), [
    ("cold", 0.02, True), ("cold", 0.5, True), ("cold", 0.85, False), ("cold", None, False),
    ("warm", 0.02, False), ("as_is", 0.02, False),
])  # fmt: skip
def test_prompts_that_share_little_are_not_in_a_cache_unless_others_left_them(
    cache: str, best: float | None, warned: bool
) -> None:
    row = {"workload": "trace", "prefix_cache_hit_rate": 0.9, "prefix_cache_hit_rate_ideal": best}
    found = judge(row, run=settings(exact_output=True, cache=cache))
    assert [one.code for one in found] == ["cache_contaminated"] * warned
