"""Checks of the content of answers: token counts, lengths, cache hits and streaming."""

from math import inf

import numpy as np

from servebench.analysis.evidence import PointEvidence
from servebench.analysis.warnings import catalog
from servebench.contracts.results import Doubt, Record
from servebench.measure.window import given_up
from servebench.protocol.kinds.table import kind_named
from servebench.util.figures import short_percent
from servebench.util.stretches import outside

SERVER_COUNT_SHARE_MAX = 0.02
"""How far the engine's own token counter may be from the tokens of its answers, as a share."""
DISAGREEING_SHARE_MAX = 0.01
PROMPT_TOKENS_SLACK = 2
"""Tokens by which a prompt may differ from its plan without a chat template: a beginning-of-text token and one more."""
WRONG_LENGTH_SHARE_MAX = 0.01
CACHED_SHARE_MAX = 0.05
"""The share of cached prompt tokens that is allowed for unique prompts, on top of the chat template."""
SHARED_MORE_MAX = 0.10
"""How much more may be found than is shared in whole blocks: some engines also reuse parts of a block."""
SHARING_NOTHING = ("unique", "short", "medium", "summarization", "long_context")
"""Workloads whose prompts share nothing to speak of; of others the best rate of an empty cache shows it."""
HIT_RATE_APART_MAX = 0.02
MERGED_SHARE_MAX = 0.01
"""From here on the p99 of ITL is that of pairs of events."""
MERGED_SHARE_DOUBTFUL = 0.1
"""From here on the p90 of ITL is too, and its p50 moves; below, what a point shows of ITL (mean, p50) holds."""
CUT_OFF_SHARE_MAX = 0.01
"""With fewer answers missing, and those the longest, the median of E2E is one of the next half percent."""
WHOLE_TOKENS_MIN = 8
"""An answer of this many tokens that arrives at once was not streamed; a shorter one may be one speculative step."""
WHOLE_SHARE_MAX = 0.01


def tokens_disagree(point: PointEvidence) -> Doubt | None:
    """Warn when token counts are missing, guessed, or contradict each other."""
    causes = [
        _server_count(point),
        _prompt_count(point) if point.facts.tokenizer_exact else None,
        *(_answer_counts(point.ok) if kind_named(point.settings.workload.api).answers_text else ()),
    ]
    causes = [cause for cause in causes if cause]
    return catalog.TOKENS_DISAGREE.issue("; ".join(causes)) if causes else None


def _server_count(point: PointEvidence) -> str | None:
    """Compare the engine's own counter of generated tokens with its answers.

    Not done when a request failed: its tokens may be in one count and not in the other.
    """
    counted, received = point.row.server_generation_tokens, point.row.output_tokens_total
    if counted is None or not received or len(point.ok) < len(point.measured):
        return None
    received += sum(record.hidden_tokens or 0 for record in point.ok)
    # what fillers received before they were cancelled is known in events; llama.cpp does not count it, vLLM does
    events = sum(len(record.event_ns) for record in point.fillers)
    most = received + round(events * received / (point.row.events or 1))
    # the last token of an answer may be its end token, which some engines count and some do not
    allowed = max(SERVER_COUNT_SHARE_MAX * received, len(point.measured) + 2 * len(point.fillers))
    if received - allowed <= counted <= most + allowed:
        return None
    who = "another client used it too" if counted > most else "its counter lags or counts differently"
    return f"the engine's metrics count {counted:.0f} generated tokens but its answers have {received:.0f}: {who}"


def _prompt_count(point: PointEvidence) -> str | None:
    """Compare the server's prompt lengths with the plan: longer may be the chat template, shorter cannot be."""
    kind = kind_named(point.settings.workload.api)
    # a template adds to each message, a pooling model its own tokens to each text
    most = inf if kind.takes_messages or not kind.answers_text else PROMPT_TOKENS_SLACK
    known = [(r, r.prompt_tokens, r.planned_prompt_tokens) for r in point.ok]
    more = [(r, counted - planned) for r, counted, planned in known if counted is not None and planned is not None]
    off = [r for r, tokens in more if not -PROMPT_TOKENS_SLACK <= tokens <= most]
    if len(off) <= DISAGREEING_SHARE_MAX * len(point.ok):
        return None
    first = off[0]
    return (
        f"{len(off)} of {len(point.ok)} prompts have another length on the server than planned "
        f"(request {first.request_id}: planned {first.planned_prompt_tokens}, counted {first.prompt_tokens}); "
        "check that model.tokenizer is the served model's"
    )


def _answer_counts(ok: list[Record]) -> list[str]:
    causes = []
    uncounted = sum(r.counted_by is None for r in ok)
    if uncounted:
        causes.append(f"the token count of {uncounted} of {len(ok)} answers is unknown, and so is the throughput")
    guessed = sum(r.counted_by == "tokenizer" for r in ok)
    if guessed:
        causes.append(f"{guessed} of {len(ok)} answers came without usage and were counted with a tokenizer")
    differing = [r for r in ok if _counts_differ(r)]
    if differing and len(differing) > DISAGREEING_SHARE_MAX * len(ok):
        worst = max(differing, key=lambda r: abs(sum(r.event_tokens or ()) - (r.output_tokens or 0)))
        # at least one where there was content
        counted = min(1, len(worst.event_ns)) if worst.event_tokens is None else sum(worst.event_tokens)
        causes.append(
            f"usage and events disagree in {len(differing)} of {len(ok)} answers "
            f"(request {worst.request_id}: usage {worst.output_tokens}, events {counted})"
        )
    return causes


def _counts_differ(record: Record) -> bool:
    """Whether usage and events give different lengths; an end token without text may be missing from the events."""
    if record.output_tokens is None or record.counted_by == "tokenizer":
        return False
    if record.event_tokens is None:
        return record.output_tokens == 0 and bool(record.event_ns)
    return abs(sum(record.event_tokens) - record.output_tokens) > max(1, 0.01 * record.output_tokens)


def hidden_tokens(point: PointEvidence) -> Doubt | None:
    """Warn when usage counts reasoning that was not sent."""
    hidden = [r.hidden_tokens for r in point.ok if r.hidden_tokens]
    if not hidden:
        return None
    return catalog.HIDDEN_TOKENS.issue(
        f"{len(hidden)} of {len(point.ok)} answers have reasoning that was counted and not sent, "
        f"{sum(hidden) / len(hidden):.0f} tokens on average"
    )


def short_answers(point: PointEvidence) -> Doubt | None:
    """Warn when answers do not have the exact length that the workload requests."""
    if not point.settings.workload.exact_output:
        return None
    known = [
        (r.output_tokens + (r.hidden_tokens or 0), r.asked_output_tokens)
        for r in point.ok
        if r.output_tokens is not None and r.asked_output_tokens is not None
    ]
    wrong = [pair for pair in known if pair[0] != pair[1]]
    if not wrong or len(wrong) <= WRONG_LENGTH_SHARE_MAX * len(known):
        return None
    got, requested = max(wrong, key=lambda pair: abs(pair[0] - pair[1]))
    return catalog.SHORT_ANSWERS.issue(
        f"{len(wrong)} of {len(known)} answers do not have the requested length "
        f"(furthest off: {got} tokens for {requested} requested)",
        # an endpoint that cannot be asked for lengths is right for what it answered
        mark=not (point.engine.dialect.exact_output and kind_named(point.settings.workload.api).exact_length),
    )


def answers_cut_off(point: PointEvidence) -> Doubt | None:
    """Warn when answers of a point in slices were given up that would count otherwise."""
    row, (start, end) = point.row, point.row.window_ns or (1, 0)
    cut = [one.sent_ns for one in given_up(point.pauses, point.measured) if one.sent_ns and start <= one.sent_ns <= end]
    count = int(outside(np.array(cut, dtype=np.int64), row.not_counted).sum())
    whole = row.e2e_ms_n or 0
    if count <= CUT_OFF_SHARE_MAX * (count + whole):
        return None
    return catalog.ANSWERS_CUT_OFF.issue(
        f"{count} of {count + whole} requests ended too long after their slice and were given up: E2E and the length of answers "
        "lack the longest ones"
    )


def cache_contaminated(point: PointEvidence) -> Doubt | None:
    """Warn when prompts that share nothing hit the prefix cache, or others hit it clearly more than they share."""
    row = point.row
    rate, best = row.prefix_cache_hit_rate, row.prefix_cache_hit_rate_ideal
    if rate is None or row.prefix_cache_hit_rate_asked:
        return None
    # the beginning of a chat template is the same for all and may be cached
    known = ((r.prompt_tokens, r.planned_prompt_tokens) for r in point.ok)
    both = [(counted, planned) for counted, planned in known if counted is not None and planned is not None]
    total = sum(counted for counted, _ in both)
    template = sum(max(0, counted - planned) for counted, planned in both) / total if total else 0.0
    # with `cold` each level has texts of its own, so what it finds beyond what it shares was sent by an earlier study
    if row.workload not in SHARING_NOTHING and (best is None or point.settings.workload.cache != "cold"):
        return None
    if best is not None and best > CACHED_SHARE_MAX + template and row.workload not in SHARING_NOTHING:
        if rate <= best + SHARED_MORE_MAX + template:
            return None
        return catalog.CACHE_CONTAMINATED.issue(
            f"{short_percent(rate)} of the prompt tokens came from the prefix cache, though the prompts share "
            f"{short_percent(best)}: they have been sent before"
        )
    if rate <= CACHED_SHARE_MAX + max(template, best or 0.0):
        return None
    return catalog.CACHE_CONTAMINATED.issue(
        f"{short_percent(rate)} of the prompt tokens came from the prefix cache, though no prompt is sent twice"
    )


def hit_rate_missed(point: PointEvidence) -> Doubt | None:
    """Warn when the prefix cache did not find the share of prompt tokens that the workload asks for."""
    asked, reached = point.row.prefix_cache_hit_rate_asked, point.row.prefix_cache_hit_rate
    if (
        asked is None
        or point.row.e2e_ms_mean is None
        or (reached is not None and abs(reached - asked) <= HIT_RATE_APART_MAX)
    ):
        return None
    found = "the engine does not say what it found" if reached is None else f"the engine found {reached:.1%}"
    return catalog.HIT_RATE_MISSED.issue(f"workload.hit_rate asks for {asked:.1%} of the prompt tokens; {found}")


def prompt_size_approximate(point: PointEvidence) -> Doubt | None:
    """Warn when prompts were sized with another tokenizer than the model's."""
    if point.facts.tokenizer_exact:
        return None
    return catalog.PROMPT_SIZE_APPROXIMATE.issue(
        f"prompts were sized with {point.facts.tokenizer_name}, not with the served model's tokenizer: their length is "
        "approximate",
        mark=point.row.input_tokens_mean is not None,
    )


def merged_events(point: PointEvidence) -> Doubt | None:
    """Warn when many events shared a read, so that their ITL is unknown."""
    events, merged = point.row.events, point.row.events_merged
    if not events or merged is None or merged <= MERGED_SHARE_MAX * events:
        return None
    return catalog.MERGED_EVENTS.issue(
        f"{merged} of {events} content events ({short_percent(merged / events)}) shared a read with an earlier one: "
        "their ITL is the time between reads, with gaps of 0 inside a read",
        mark=merged < MERGED_SHARE_DOUBTFUL * events,
    )


def not_streamed(point: PointEvidence) -> Doubt | None:
    """Warn when whole answers arrived at once."""
    long = [r for r in point.ok if (r.output_tokens or 0) >= WHOLE_TOKENS_MIN]
    whole = sum(r.first_event_ns == r.last_event_ns for r in long)
    if whole <= WHOLE_SHARE_MAX * len(long):
        return None
    return catalog.NOT_STREAMED.issue(
        f"{whole} of {len(long)} answers of {WHOLE_TOKENS_MIN} tokens or more ({short_percent(whole / len(long))}) arrived "
        "all at once: their TTFT equals their E2E, and they have no ITL"
    )
