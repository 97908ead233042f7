"""Why a point's numbers may not be believed: each reason with its figures, its cause and what to do about it.

Only what one point shows of itself is judged here; what needs a second look (two runs side by side, the driver, the
engine's process) is handed in as `extra`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from servebench.contracts.exchange import PhaseReport
from servebench.contracts.results import Doubt, Record
from servebench.contracts.settings import RunSettings
from servebench.util.units import NS_PER_MS, NS_PER_S

LEVEL_SHARE_MIN = 0.95
"""The average in flight must be at least this share of the level asked."""
REQUESTS_MIN = 30
"""Ok requests in the window under which a mean or median is weak: the usual rule for a mean to be near normal."""
WINDOW_S_MIN = 5.0
"""A shorter window holds too few engine steps, and one pause of a second moves its throughput by a fifth."""
FAILED_SHARE_VOID = 0.5
LATENESS_SHARE_MAX = 0.1
"""Lateness p99 against the TTFT p50 that it is part of for a user."""
LATENESS_FLOOR_MS = 1.0
"""Lateness under this is the operating system's, whatever it is compared with."""
LATENESS_ALONE_MS_MAX = 5.0
"""The limit where no TTFT is known to compare with."""
CPU_SHARE_MAX = 0.9
TREND_MIN = 0.1
"""A drift over the window under this changes no conclusion."""
TREND_P_MAX = 0.01
HALF_WIDTH_SHARE_MAX = 0.25
"""Half of the interval of throughput against its value: two such points differ by half before they differ at all."""
CLIENT_ERROR_SHARE_MAX = 0.1
"""The client's own error against the median of what it measures."""
QUEUE_BYTES_MAX = 65_536
"""More than one read takes: the client is behind with that stream."""

LOOP_LAG_MS_MAX = 5.0
WRONG_LENGTH_SHARE_MAX = 0.01
SERVER_COUNT_SHARE_MAX = 0.02
"""How far the engine's own token counter may be from its answers', as a share."""

DISAGREEING_SHARE_MAX = 0.01
PROMPT_TOKENS_SLACK = 2
"""Tokens by which a prompt may differ from its plan where no template is added: a beginning-of-text token, and one more."""

CACHED_SHARE_MAX = 0.05
"""Prompt tokens found in the cache, on prompts that share only the chat template."""
MERGED_SHARE_MAX = 0.01
WHOLE_TOKENS_MIN = 8
"""An answer of so many tokens that comes all at once is none that was streamed; fewer may be one step of speculation."""
WHOLE_SHARE_MAX = 0.01
SENDING_STRETCH_MAX = 1.05
"""How much longer than planned the sending of an open loop may take: the 95 % of a level, for a rate."""


class Code(StrEnum):
    """Every reason that this module gives, as stored in the column `doubts`."""

    LEVEL_NOT_REACHED = "level_not_reached"
    TOO_FEW_REQUESTS = "too_few_requests"
    TOO_SHORT = "too_short"
    NOT_STATIONARY = "not_stationary"
    IMPRECISE = "imprecise"
    ERRORS = "errors"
    ENGINE_DIED = "engine_died"
    WORKER_DIED = "worker_died"
    NO_PROGRESS = "no_progress"
    INTERRUPTED = "interrupted"
    CLIENT_BOUND = "client_bound"
    CLOCK_STEPPED = "clock_stepped"
    TOKENS_DISAGREE = "tokens_disagree"
    SHORT_ANSWERS = "short_answers"
    CACHE_CONTAMINATED = "cache_contaminated"
    PROMPT_SIZE_APPROXIMATE = "prompt_size_approximate"
    MERGED_EVENTS = "merged_events"
    NOT_STREAMED = "not_streamed"
    WRONG_GPU = "wrong_gpu"
    CANCELLED_NOT_FREED = "cancelled_not_freed"
    EMULATED = "emulated"


def doubts(
    row: Mapping[str, Any],
    records: Sequence[Record],
    report: PhaseReport,
    settings: RunSettings,
    *,
    tokenizer_exact: bool = True,
    tokenizer_name: str = "the tokenizer",
    extra: Iterable[Doubt] = (),
) -> tuple[Doubt, ...]:
    """All doubts about a point, in the order of Code, then `extra`. Pure.

    `row` is the point's row, `records` all of its records (warm-up ones are left out here). `tokenizer_exact` says
    whether prompts were sized with the served model's own tokenizer.
    """
    measured = [r for r in records if not r.warmup]
    ok = [r for r in measured if r.outcome == "ok"]
    found = (
        _level_not_reached(row, measured),
        _too_few_requests(row),
        _too_short(row),
        _not_stationary(row),
        _imprecise(row),
        _errors(measured, report),
        _engine_died(report),
        _worker_died(report),
        _no_progress(report, settings),
        _interrupted(measured, report),
        _client_bound(row),
        _clock_stepped(report),
        _tokens_disagree(ok, _server_count(row, measured), _prompt_count(ok, settings) if tokenizer_exact else None),
        _short_answers(ok, settings),
        _cache_contaminated(row, ok),
        _prompt_size_approximate(tokenizer_exact, tokenizer_name),
        _merged_events(row),
        _not_streamed(ok),
        _cancelled_not_freed(row),
        _emulated(row),
    )
    return (*(doubt for doubt in found if doubt is not None), *extra)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _level_not_reached(row: Mapping[str, Any], measured: Sequence[Record]) -> Doubt | None:
    level = row["concurrency"]
    if level is None:
        return _rate_not_reached(row, measured)
    if not measured or row["average_in_flight"] is None:
        return Doubt(
            code=Code.LEVEL_NOT_REACHED,
            message=f"no request was in flight for any time, of {level} asked",
            remedy="look at the errors and at engine.log: the engine took no request",
            void=True,
        )
    average, planned = row["average_in_flight"], row["requests_planned"]
    share = average / level
    if planned < level:
        return Doubt(
            code=Code.LEVEL_NOT_REACHED,
            message=f"{planned} requests were planned for concurrency {level}, so the level was never there "
            f"({average:.3g} in flight on average)",
            remedy=f"plan at least ten a stream: load.requests={10 * level}, or load.requests=auto",
            void=True,
        )
    if row["level_reached"] and share >= LEVEL_SHARE_MIN:
        return None
    never = "" if row["level_reached"] else ", and the level was never there"
    return Doubt(
        code=Code.LEVEL_NOT_REACHED,
        message=f"{average:.3g} requests were in flight on average, {_percent(share)} of concurrency {level}{never}",
        remedy="send more requests a point (load.requests or load.duration_s), and see whether requests failed at once "
        "or the client was late",
        void=True,
    )


def _rate_not_reached(row: Mapping[str, Any], measured: Sequence[Record]) -> Doubt | None:
    sent = [(r.scheduled_ns, r.sent_ns) for r in measured if r.sent_ns is not None]
    if len(sent) < 2 or row["rate"] is None:
        return None
    planned_ns = max(scheduled for scheduled, _ in sent) - min(scheduled for scheduled, _ in sent)
    taken_ns = max(stamp for _, stamp in sent) - min(stamp for _, stamp in sent)
    if taken_ns <= SENDING_STRETCH_MAX * planned_ns:
        return None
    return Doubt(
        code=Code.LEVEL_NOT_REACHED,
        message=f"the {len(sent)} requests planned over {planned_ns / NS_PER_S:.3g} s at {row['rate']:g} a second took "
        f"{taken_ns / NS_PER_S:.3g} s to send",
        remedy="raise load.max_concurrency or set it to null, and leave a core free for the client",
        void=True,
    )


def _too_few_requests(row: Mapping[str, Any]) -> Doubt | None:
    count = row["ttft_ms_n"] or 0
    if count >= REQUESTS_MIN:
        return None
    return Doubt(
        code=Code.TOO_FEW_REQUESTS,
        message=f"every number rests on {count} requests, means and medians too (ok and sent inside the window)",
        remedy=f"send more requests a point (load.requests): {REQUESTS_MIN} in the window for a mean, 100 for a p99",
    )


def _too_short(row: Mapping[str, Any]) -> Doubt | None:
    window_s = row["window_s"]
    if window_s is not None and window_s >= WINDOW_S_MIN:
        return None
    return Doubt(
        code=Code.TOO_SHORT,
        message=f"the window is {window_s or 0.0:.3g} s long, under {WINDOW_S_MIN:g} s",
        remedy="send more requests a point (load.requests), or set load.duration_s; a load.warmup_s as long as the run "
        "leaves no window",
    )


def _not_stationary(row: Mapping[str, Any]) -> Doubt | None:
    causes, rising, slowing = [], False, False
    for name, what in (("throughput", "output throughput"), ("ttft", "TTFT")):
        change, p = row.get(f"{name}_trend"), row.get(f"{name}_trend_p")
        if change is None or p is None or abs(change) < TREND_MIN or p > TREND_P_MAX:
            continue
        causes.append(
            f"{what} {'rose' if change > 0 else 'fell'} by {_percent(abs(change))} of its median over the window"
        )
        rising = rising or (name == "ttft" and change > 0)
        slowing = slowing or (name == "throughput" and change < 0)
    if not causes:
        return None
    if rising and row["rate"] is not None:
        remedy = "the engine does not keep up with this rate and its queue grows: lower load.rate, or read no mean here"
    elif rising or slowing:
        remedy = (
            "the engine slows down as it works (a cache that fills, a GPU that heats up): measure longer with "
            "load.duration_s, and look at its clocks and cache"
        )
    else:
        remedy = "the engine was still warming up: set load.duration_s, and load.warmup_s to cut its beginning off"
    return Doubt(
        code=Code.NOT_STATIONARY,
        message=f"it was not steady: {'; '.join(causes)} (Mann-Kendall test, p under {TREND_P_MAX:g})",
        remedy=remedy,
    )


def _failures(measured: Sequence[Record], report: PhaseReport) -> list[Record]:
    """What failed, without what we cancelled ourselves because the user stopped the point."""
    return [
        r
        for r in measured
        if r.outcome not in ("ok", "abandoned")
        and not (r.outcome == "cancelled" and report.stopped in ("interrupt", "worker_died", "no_progress"))
    ]


def _imprecise(row: Mapping[str, Any]) -> Doubt | None:
    rate, low, high = (row.get(f"output_throughput_tok_s{end}") for end in ("", "_low", "_high"))
    if not rate or low is None or high is None:
        return None
    half = (high - low) / 2
    if half <= HALF_WIDTH_SHARE_MAX * rate:
        return None
    return Doubt(
        code=Code.IMPRECISE,
        message=f"throughput is known to \u00b1{_percent(half / rate)} only ({rate:.3g} \u00b1{half:.2g} tok/s): it came in slow "
        "waves, as on a machine that has other work, or from few answers",
        remedy="measure longer (load.requests, load.duration_s), on a machine that does nothing else: four times as long "
        "halves the interval",
    )


def _errors(measured: Sequence[Record], report: PhaseReport) -> Doubt | None:
    failed = _failures(measured, report)
    if not failed:
        return None
    share = len(failed) / len(measured)
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(r.outcome for r in failed).most_common())
    # what was not sent for want of an answer only repeats why that one failed
    causes = [r for r in failed if r.outcome != "session_ended"] or failed
    messages = Counter(r.error for r in causes if r.error).most_common(1)
    said = f"; most often: {messages[0][0]}" if messages else ""
    return Doubt(
        code=Code.ERRORS,
        message=f"{len(failed)} of {len(measured)} requests failed ({_percent(share)}): {kinds}{said}",
        remedy="the latencies are those of the requests that got through: look at engine.log, lower the load, or raise "
        "load.timeout_s",
        void=share >= FAILED_SHARE_VOID,
    )


def _engine_died(report: PhaseReport) -> Doubt | None:
    if report.stopped != "engine_died":
        return None
    return Doubt(
        code=Code.ENGINE_DIED,
        message=f"the engine died after {report.sent} of {report.planned} requests were sent",
        remedy="read the last lines of engine.log; out of memory is the usual cause: lower engine.gpu_memory_fraction, "
        "engine.max_num_seqs or engine.max_model_len",
        void=True,
    )


def _no_progress(report: PhaseReport, settings: RunSettings) -> Doubt | None:
    if report.stopped != "no_progress":
        return None
    return Doubt(
        code=Code.NO_PROGRESS,
        message=f"the engine lived and sent nothing for longer than load.timeout_s={settings.load.timeout_s:g} s after "
        f"{report.sent} of {report.planned} requests; the point was ended",
        remedy="read engine.log, and lower load.timeout_s to find out sooner",
        void=True,
    )


def _worker_died(report: PhaseReport) -> Doubt | None:
    if report.stopped != "worker_died":
        return None
    return Doubt(
        code=Code.WORKER_DIED,
        message=f"{report.error or 'a load worker died'}: {report.sent} of {report.planned} requests had been sent",
        remedy="look whether the kernel killed it for want of memory (dmesg), and run the point again",
        void=True,
    )


def _interrupted(measured: Sequence[Record], report: PhaseReport) -> Doubt | None:
    if report.stopped != "interrupt":
        return None
    cancelled = sum(r.outcome == "cancelled" for r in measured)
    return Doubt(
        code=Code.INTERRUPTED,
        message=f"the point was stopped by the user after {report.sent} of {report.planned} requests were sent, "
        f"{cancelled} of them unfinished",
        remedy="run the point again",
    )


def _client_bound(row: Mapping[str, Any]) -> Doubt | None:
    causes = []
    late, ttft = row["lateness_ms_p99"], row["ttft_ms_p50"]
    limit = LATENESS_ALONE_MS_MAX if ttft is None else max(LATENESS_FLOOR_MS, LATENESS_SHARE_MAX * ttft)
    if late is not None and late > limit:
        against = "" if ttft is None else f", against a TTFT of {ttft:.3g} ms (p50)"
        causes.append(f"1 % of the requests were sent {late:.3g} ms late or later{against}")
    cpu = row["client_cpu_share"]
    if cpu is not None and cpu > CPU_SHARE_MAX:
        causes.append(f"the client used {_percent(cpu)} of a core for each worker")
    queued = row.get("receive_queue_bytes_max")
    if queued is not None and queued >= QUEUE_BYTES_MAX:
        causes.append(f"up to {queued} bytes waited in the kernel for one stream after the client had read")
    lag = row["loop_lag_ms_p99"]
    # the kernel's stamps stay right while the loop sleeps; what it is late in sending is in the lateness
    if row["stamp_source"] == "user" and lag is not None and lag > LOOP_LAG_MS_MAX:
        causes.append(f"the client's loop woke {lag:.3g} ms late (p99)")
    for name, what in (("ttft", "TTFT"), ("itl", "ITL")):
        error, value = row.get(f"client_error_ms_{name}"), row.get(f"{name}_ms_p50")
        # a median gap of 0 is a server that sends several events at once: that is a doubt of its own
        if error is not None and value and error > CLIENT_ERROR_SHARE_MAX * value:
            causes.append(f"{what} is right within {error:.3g} ms only, and is {value:.3g} ms (p50)")
    if not causes:
        return None
    return Doubt(
        code=Code.CLIENT_BOUND,
        message=f"the client may have limited what was measured: {'; '.join(causes)}",
        remedy="leave a core free for the client, or drive the load from another machine (launch=attach)",
    )


def _clock_stepped(report: PhaseReport) -> Doubt | None:
    if not report.clock_step_ns:
        return None
    return Doubt(
        code=Code.CLOCK_STEPPED,
        message=f"the wall clock was stepped by {report.clock_step_ns / NS_PER_MS:+.3g} ms during the point, "
        "and every stamp after it with it",
        remedy="run the point again once the clock is in step (chronyc tracking, timedatectl)",
        void=True,
    )


def _server_count(row: Mapping[str, Any], measured: Sequence[Record]) -> str | None:
    """How the engine's own counter of generated tokens differs from what its answers say; None when it does not, or
    when a request failed, for its tokens may be in one and not in the other."""
    counted, received = row.get("server_generation_tokens"), row.get("output_tokens_total")
    if counted is None or not received or any(r.outcome != "ok" for r in measured):
        return None
    # the last token of an answer may be its end token, which some engines count and some do not
    allowed = max(SERVER_COUNT_SHARE_MAX * received, len(measured))
    if abs(counted - received) <= allowed:
        return None
    who = "somebody else used it meanwhile" if counted > received else "its counter is behind or counts otherwise"
    return f"the engine's metrics count {counted:.0f} generated tokens and its answers {received:.0f}: {who}"


def _prompt_count(ok: Sequence[Record], settings: RunSettings) -> str | None:
    """How the server counts prompts otherwise than planned: more is the chat template, fewer cannot be."""
    most = PROMPT_TOKENS_SLACK if settings.workload.api == "completions" else None
    off = [
        r
        for r in ok
        if r.prompt_tokens is not None
        and r.planned_prompt_tokens is not None
        and (
            r.prompt_tokens < r.planned_prompt_tokens - PROMPT_TOKENS_SLACK
            or (most is not None and r.prompt_tokens > r.planned_prompt_tokens + most)
        )
    ]
    if len(off) <= DISAGREEING_SHARE_MAX * len(ok):
        return None
    first = off[0]
    return (
        f"{len(off)} of {len(ok)} prompts have another length for the server than planned "
        f"(request {first.request_id}: planned {first.planned_prompt_tokens}, counted {first.prompt_tokens}; "
        "is model.tokenizer that of the served model?)"
    )


def _tokens_disagree(ok: Sequence[Record], *told: str | None) -> Doubt | None:
    causes = [cause for cause in told if cause]
    uncounted = sum(r.counted_by is None for r in ok)
    if uncounted:
        causes.append(f"the tokens of {uncounted} of {len(ok)} answers are not known, so throughput is not either")
    guessed = sum(r.counted_by == "tokenizer" for r in ok)
    if guessed:
        causes.append(f"{guessed} of {len(ok)} answers came without a usage and were counted by a tokenizer")
    differing = [r for r in ok if _counts_differ(r)]
    if differing and len(differing) > DISAGREEING_SHARE_MAX * len(ok):
        worst = max(differing, key=lambda r: abs(sum(r.event_tokens or ()) - (r.output_tokens or 0)))
        causes.append(
            f"in {len(differing)} of {len(ok)} answers usage and events disagree "
            f"(request {worst.request_id}: usage {worst.output_tokens}, events {_seen_tokens(worst)})"
        )
    if not causes:
        return None
    return Doubt(
        code=Code.TOKENS_DISAGREE,
        message="; ".join(causes),
        remedy="ask the server for usage in the stream (stream_options.include_usage), and compare engines by "
        "requests a second until the counts agree",
    )


def _seen_tokens(record: Record) -> int:
    """Tokens that the events tell of; at least one where there was content."""
    return sum(record.event_tokens) if record.event_tokens is not None else min(1, len(record.event_ns))


def _counts_differ(record: Record) -> bool:
    """Whether usage and events tell different lengths: an end token without text may be missing from the events."""
    if record.output_tokens is None or record.counted_by == "tokenizer":
        return False
    if record.event_tokens is None:
        return record.output_tokens == 0 and bool(record.event_ns)
    return abs(sum(record.event_tokens) - record.output_tokens) > max(1, 0.01 * record.output_tokens)


def _short_answers(ok: Sequence[Record], settings: RunSettings) -> Doubt | None:
    if not settings.workload.exact_output:
        return None
    known = [
        (r.output_tokens, r.asked_output_tokens)
        for r in ok
        if r.output_tokens is not None and r.asked_output_tokens is not None
    ]
    wrong = [(got, asked) for got, asked in known if got != asked]
    if not wrong or len(wrong) <= WRONG_LENGTH_SHARE_MAX * len(known):
        return None
    got, asked = max(wrong, key=lambda pair: abs(pair[0] - pair[1]))
    return Doubt(
        code=Code.SHORT_ANSWERS,
        message=f"{len(wrong)} of {len(known)} answers do not have the length asked for "
        f"(furthest off: {got} tokens, {asked} asked)",
        remedy="the engine did not hold workload.exact_output: compare only engines that do, or set "
        "workload.exact_output=false and compare per token",
    )


def _template_share(ok: Sequence[Record]) -> float:
    """What the chat template adds, as a part of all prompt tokens: its beginning is the same for all and may be cached."""
    known = [(r.prompt_tokens, r.planned_prompt_tokens) for r in ok]
    both = [(counted, planned) for counted, planned in known if counted is not None and planned is not None]
    counted = sum(counted for counted, _ in both)
    return sum(max(0, counted - planned) for counted, planned in both) / counted if counted else 0.0


def _cache_contaminated(row: Mapping[str, Any], ok: Sequence[Record]) -> Doubt | None:
    rate = row["prefix_cache_hit_rate"]
    if row["workload"] != "unique" or rate is None or rate <= CACHED_SHARE_MAX + _template_share(ok):
        return None
    return Doubt(
        code=Code.CACHE_CONTAMINATED,
        message=f"{_percent(rate)} of the prompt tokens came from the prefix cache, though no prompt is sent twice",
        remedy="set workload.cache=cold or engine.prefix_caching=false, give workload.seed a new value, or restart the "
        "engine",
    )


def _prompt_size_approximate(exact: bool, name: str) -> Doubt | None:
    if exact:
        return None
    return Doubt(
        code=Code.PROMPT_SIZE_APPROXIMATE,
        message=f"prompts were sized by {name}, not by the served model's tokenizer: their length is only near the one "
        "asked for",
        remedy="name the model's tokenizer (model.tokenizer=), and read input_tokens_mean for the true length",
    )


def _merged_events(row: Mapping[str, Any]) -> Doubt | None:
    events, merged = row["events"], row["events_merged"]
    if not events or merged <= MERGED_SHARE_MAX * events:
        return None
    return Doubt(
        code=Code.MERGED_EVENTS,
        message=f"{merged} of {events} content events ({_percent(merged / events)}) shared a read with an earlier one: "
        "ITL is that of reads there, with gaps of 0 between",
        remedy="the engine sent several at once (stream interval, speculation, a proxy that buffers), or the client "
        "was late: compare TPOT instead of ITL",
    )


def _not_streamed(ok: Sequence[Record]) -> Doubt | None:
    long = [r for r in ok if (r.output_tokens or 0) >= WHOLE_TOKENS_MIN]
    whole = sum(r.first_event_ns == r.last_event_ns for r in long)
    if whole <= WHOLE_SHARE_MAX * len(long):
        return None
    return Doubt(
        code=Code.NOT_STREAMED,
        message=f"{whole} of {len(long)} answers of {WHOLE_TOKENS_MIN} tokens or more ({_percent(whole / len(long))}) came "
        "all at once: their TTFT is their E2E, and they have no ITL",
        remedy="see whether the server, or a proxy before it, buffers answers or leaves out `stream`; read E2E and "
        "requests a second only",
    )


def wrong_gpu(settings: RunSettings, gpus: Sequence[str]) -> Doubt | None:
    """The config names one GPU and the driver of this machine another, or fewer of them. `gpus` are the driver's names.

    For an engine that runs on this machine and is not emulated: of any other the config is all that is known. With
    `gpu=none` nothing is claimed.
    """
    asked = settings.gpu
    if asked.name == "none" or not asked.count:
        return None
    plain = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in gpus]
    fitting = sum(re.sub(r"[^a-z0-9]", "", asked.name.lower()) in name for name in plain)
    if fitting >= asked.count:
        return None
    there = ", ".join(gpus) if gpus else "none"
    return Doubt(
        code=Code.WRONG_GPU,
        message=f"the config says {asked.count} x {asked.name}, the driver of this machine knows {there}",
        remedy="set gpu= and gpu.count= to what is there: costs and comparisons rest on it",
    )


def _cancelled_not_freed(row: Mapping[str, Any]) -> Doubt | None:
    if row.get("cancelled_freed") is not False:
        return None
    return Doubt(
        code=Code.CANCELLED_NOT_FREED,
        message="the engine went on with requests whose client had gone away: it held "
        f"{row['server_excess_requests_mean']:.3g} requests more than were in flight, on average",
        remedy="see whether the engine, or a proxy before it, notices a closed connection; the load was higher than asked",
    )


def _emulated(row: Mapping[str, Any]) -> Doubt | None:
    if not row["emulated"]:
        return None
    return Doubt(
        code=Code.EMULATED,
        message="the engine was emulated: the numbers say nothing of a real one",
        remedy="set launch=process, docker or attach to measure a real engine",
        mark=True,
    )
