"""Where the time of requests goes, and what the slowest have in common: tables and sentences, and the time of one request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from servebench.analysis import time_parts
from servebench.analysis.slow_tail import TAIL_MIN, SlowStretch, SlowTail, where_time_goes
from servebench.contracts.stored import RunData
from servebench.report.blocks import Block, Fold, Heading, Label, Line, Table, items, table
from servebench.util.errors import ConfigError
from servebench.util.figures import MISSING, number, short_percent
from servebench.util.safe_text import clean_line
from servebench.util.units import NS_PER_MS

NOT_REPORTED = "{engine} reports no times of its own: these parts are by the client's stamps."
PART_WORDS = {
    "client": "the client, which sends late",
    "network": "outside of the engine's own times: its front end, or a network",
    "queue": "waiting in the engine's queue",
    time_parts.FIRST: "before the first token",
    time_parts.REST: "after the first token",
}
FACTOR_WORDS = {
    "server_queue_ms": "wait {} ms in the engine's queue instead of {}",
    "prompt_tokens": "have prompts of {} tokens instead of {}",
    "cached_tokens": "find {} tokens in the prefix cache instead of {}",
    "output_tokens": "have answers of {} tokens instead of {}",
    "preemptions_per_s": "see {} preemptions/s in the engine instead of {}",
    "prefilling": "are sent when {} other requests have no token yet instead of {}",
    "prefill_tokens": "are sent when others have {} prompt tokens to compute instead of {}",
    "in_flight": "are sent when {} others are in flight instead of {}",
}
"""What is said of the slow requests by the column of a factor, with its medians in them and in the rest."""
FACTORS_NOTE = (
    "More often: the share of pairs of a slow request and another one in which the slow one has more of it (of cached tokens: "
    "less). P-values allow for their number and for requests that share the engine."
)
ALONE = "nothing that is compared tells them from the rest"
BAR = 30
FACTORS_HEAD = ("run", "load", "of", "median of", "slowest", "others", "more often", "p", "finding")
REQUEST_COLUMNS = (*time_parts.STAMPS, "last_event_ns", "error", "prompt_tokens", "cached_tokens", "output_tokens", "residual_ms",
                   *time_parts.COLUMNS.values())  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """Where the time of a run's requests goes; `engine` is what its engine is called in a sentence."""

    name: str
    engine: str
    parts: Sequence[time_parts.TimeParts]
    tails: Sequence[SlowTail]

    @property
    def lines(self) -> list[str]:
        """What TTFT and E2E are, and what the slowest requests have in common, in sentences."""
        return [*parts_lines(self.parts, self.engine), *tail_lines(self.tails)]

    def as_dict(self) -> dict[str, Any]:
        """Return parts and tails as plain data."""
        return {"parts": [one.as_dict() for one in self.parts], "slow_tail": [one.as_dict() for one in self.tails]}


def times_of(run: RunData, name: str) -> RunTimes:
    """Return where the time of a run's requests goes. Raises StoreError."""
    parts, tails = where_time_goes(run)
    return RunTimes(name=name, engine=clean_line(run.fact("engine") or "the engine"), parts=parts, tails=tails)


def parts_lines(found: Sequence[time_parts.TimeParts], engine: str) -> list[str]:
    """Return what TTFT and E2E of each level are for the most part, a line for each level."""
    lines = []
    for level in dict.fromkeys(one.level for one in found):
        own = [one for one in found if one.level == level and one.group == "all" and one.total_ms > 0]
        shown = [one for one in own if time_parts.FIRST not in one.parts or one.metric == "E2E"]
        if shares := [f"{one.largest[1]:.0%} of {one.metric} is {_words(one, engine)}" for one in shown]:
            lines.append(f"at {level.words}: {', '.join(shares)}")
    return lines


def _words(one: time_parts.TimeParts, engine: str) -> str:
    name = one.largest[0]
    if name == "queue":
        return f"waiting in {engine}'s queue"
    if name == "network":
        unknown = "" if "queue" in one.parts else f" ({engine} reports no queue time)"
        return part_title([one], name).replace(", ", " or ") + unknown
    return PART_WORDS.get(name, name)


def part_title(found: Sequence[time_parts.TimeParts], name: str) -> str:
    """Return what a part of these levels is called."""
    if name != "network":
        return name
    return rest_title(here=all(one.here for one in found), queue=all("queue" in one.parts for one in found))


def rest_title(*, here: bool, queue: bool) -> str:
    """Return what the rest of TTFT is called that an engine does not report: a network where the server is not `here`, the front
    end, and the queue where that is not known."""
    return ", ".join([*([] if here else ["network"]), "front end", *([] if queue else ["queue"])])


def tail_lines(tails: Sequence[SlowTail]) -> list[str]:
    """Return what the slowest requests of each level have in common, and where there is nothing to compare."""
    none = f"no slow tail (the slowest take less than {TAIL_MIN:g} times the rest)"
    few = f"too few requests for a slow tail (fewer than {time_parts.SLOW_FROM})"
    lines = [tail_line(one) for one in tails if one.is_tail]
    for reason, own in ((none, [one for one in tails if one.n]), (few, [one for one in tails if not one.n])):
        levels: dict[str, list[str]] = {}
        for one in own:
            if not one.is_tail:
                levels.setdefault(one.metric, []).append(one.level.words)
        if levels:
            lines.append(f"{reason}: " + "; ".join(f"{metric} at {', '.join(at)}" for metric, at in levels.items()))
    return lines


def tail_line(one: SlowTail) -> str:
    """Return in a sentence or two what the slowest requests of a level have in common."""
    times = f"{one.metric} {number(one.slow_ms)} ms, the others {number(one.rest_ms)} ms"
    common = [FACTOR_WORDS[f.kind.column].format(number(f.slow), number(f.rest)) for f in one.common]
    said = [_stretch_words(one, one.stretch)] if one.stretch is not None and one.stretch.found else []
    if one.extra:
        part, share = one.extra
        said.insert(0, f"{min(1.0, share):.0%} of the difference is {PART_WORDS.get(part, part)}")
    return f"at {one.level.words}, the slowest {one.n} of {one.of} ({times}): {'; '.join([*said, *common]) or ALONE}"


def _stretch_words(one: SlowTail, found: SlowStretch) -> str:
    seconds = (found.end_ns - found.start_ns) / 1e9
    share = short_percent(found.requests / one.of, 2)
    why = f" ({'; '.join(clean_line(cause) for cause in found.causes)})" if found.causes else ""
    return (
        f"{found.holds} are sent within {number(seconds)} s, {number(found.start_s)} s after the first request, among {share} of "
        f"all requests, which take {found.slower:.2g} times as long as the others{why}"
    )


def times_blocks(found: Sequence[RunTimes], title: str = "", *, complete: bool = True) -> Iterator[Block]:
    """Yield where the time of requests goes, of each run under its name or this title: the mean parts, what the slowest have in
    common, and what these were compared by; the E2E and the slowest of the busiest level only, unless `complete`."""
    for run in (one for one in found if one.parts):
        if not all(one.reported for one in run.parts):
            yield Line.of(NOT_REPORTED.format(engine=run.engine))
        yield Heading(title or f"{run.name} (mean ms)")
        whole = [one for one in run.parts if one.metric == "E2E" and one.group == "all"]
        yield parts_table(run.parts if complete else whole or run.parts)
        tails = [one for one in run.tails if one.is_tail]
        yield items(run.lines if complete else [tail_line(one) for one in tails if one.level == tails[-1].level])
    if complete:
        yield from factor_blocks(found)


def parts_table(found: Sequence[time_parts.TimeParts]) -> Table:
    """Return the mean parts of each level in milliseconds, of all requests and of the slowest."""
    names = [name for name in time_parts.PARTS if any(name in one.parts for one in found)]
    rows = [
        [
            *(one.level.number, one.metric, f"{one.group} {one.n}"),
            *(number(round(one.parts[name], 6)) if name in one.parts else MISSING for name in names),
            number(one.total_ms),
        ]
        for one in found
    ]
    heads = [part_title(found, name).replace(" ", "\n") for name in names]
    return table(("at", "of", "requests", *heads, "total"), rows, left=(0, 1, 2), caption="Where the time goes")


def factor_blocks(found: Sequence[RunTimes]) -> Iterator[Block]:
    """Yield the medians of each factor in the slowest requests and the others, with what the test says."""
    several = len(found) > 1
    rows = [
        [
            *([run.name] if several else []),
            *(tail.level.words, tail.metric, one.kind.title, number(one.slow), number(one.rest)),
            *(f"{one.more_often:.0%}", f"{one.p:.2g}", Label("in common", "warn") if one.found else ""),
        ]
        for run in found
        for tail in run.tails
        for one in tail.factors
    ]
    if rows:
        head = [*FACTORS_HEAD[not several :]]
        left = (*range(len(head) - 5), len(head) - 1)
        compared = table(head, rows, left=left, caption="What the slowest requests have in common")
        yield Fold("what the slowest requests were compared by", [Line.of(FACTORS_NOTE, tone="dim"), compared])


def request_lines(run: RunData, request_id: str) -> list[str]:
    """Return the timeline of one request of a run. Raises ConfigError if it has none of this id, and StoreError."""
    found = run.requests_with(REQUEST_COLUMNS, request_id)
    if found.empty:
        known = run.requests_with(["request_id"])["request_id"]
        some = f", such as {known.iloc[-1]}" if len(known) else ""
        raise ConfigError(
            f"--request {request_id}: {run.run_id} has no such request; its request_ids{some}, are in requests.parquet"
        )
    one = found.iloc[0]

    def at(column: str) -> str:
        return MISSING if pd.isna(one[column]) else f"{(one[column] - one['scheduled_ns']) / NS_PER_MS:,.2f} ms"

    tokens = {"prompt_tokens": "tokens in", "cached_tokens": "of them cached", "output_tokens": "out"}
    sums = [time_parts.FIRST, time_parts.REST]
    parts = time_parts.request_parts(found).iloc[:1].dropna(axis=1).drop(columns=sums, errors="ignore")
    total = float(parts.sum(axis=1).iloc[0]) if len(parts) else 0.0

    rest = rest_title(here=time_parts.server_is_here(run), queue="queue" in parts.columns)

    def part(*names: str) -> Iterator[str]:
        for name in names if len(parts) else ():
            if name in parts.columns and name != "client":
                value = float(parts[name].iloc[0])
                bar = "█" * round(BAR * max(0.0, value) / total) if total else ""
                title = rest if name == "network" else name
                yield f"  {title:<12} {value:>12,.2f} ms  {bar}".rstrip()

    known = pd.notna(one["residual_ms"])
    lines = [
        f"request {request_id} of {one['point']}: {one['outcome'] if pd.isna(one['error']) else one['error']}",
        ", ".join(f"{int(one[column])} {words}" for column, words in tokens.items() if pd.notna(one[column])),
        "scheduled at 0.00 ms",
        f"sent at {at('sent_ns')}",
        *part(*time_parts.BEFORE),
        f"first content at {at('first_event_ns')}",
        *part("decode", "delivery"),
        *(f"last content at {at('last_event_ns')}", f"ended at {at('ended_ns')}"),
        f"{one['residual_ms']:,.2f} ms are in none of the engine's times"
        if known
        else "the engine reported no times for it",
    ]
    return [line for line in lines if line]
