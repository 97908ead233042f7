"""Where the time of requests goes, and of one request."""

from collections.abc import Iterator, Sequence

import pandas as pd

from servebench.analysis.time_parts import (
    BEFORE,
    COLUMNS,
    FIRST,
    PARTS,
    REST,
    STAMPS,
    TimeParts,
    request_parts,
    server_is_here,
)
from servebench.contracts.stored import RunData
from servebench.report.blocks import Block, Fold, Heading, Label, Line, Table, items, table
from servebench.report.parts import FACTORS_NOTE, NOT_REPORTED, RunTimes, bar_name, part_title, rest_title, tail_line
from servebench.util.errors import ConfigError
from servebench.util.figures import MISSING, number
from servebench.util.units import NS_PER_MS

BAR = 30
FACTORS_HEAD = ("run", "load", "of", "median of", "slowest", "others", "more often", "p", "finding")
REQUEST_COLUMNS = (*STAMPS, "last_event_ns", "error", "prompt_tokens", "cached_tokens", "output_tokens", "residual_ms",
                   *COLUMNS.values())  # fmt: skip


def run_times_blocks(found: RunTimes, *, complete: bool) -> Iterator[Block]:
    """Yield where the time of a run's requests goes: their E2E and what the slowest of the busiest level have in common, and
    everything where `complete`."""
    if not found.parts:
        return
    if not all(one.reported for one in found.parts):
        yield Line.of(NOT_REPORTED.format(engine=found.engine))
    yield Heading("where the time goes (mean ms)")
    whole = [one for one in found.parts if one.metric == "E2E" and one.group == "all"]
    yield parts_table(found.parts if complete else whole or found.parts)
    tails = [one for one in found.tails if one.is_tail]
    yield items(found.lines if complete else [tail_line(one) for one in tails if one.level == tails[-1].level])
    if complete:
        yield from factor_blocks([found])


def times_blocks(found: Sequence[RunTimes]) -> Iterator[Block]:
    """Yield what TTFT and E2E of runs are and what their slowest requests have in common, and what these were compared by."""
    for run in found:
        if run.lines:
            if len(found) > 1:
                yield Heading(run.name)
            yield items(run.lines)
    yield from factor_blocks(found)


def parts_table(found: Sequence[TimeParts]) -> Table:
    """Return the mean parts of each level in milliseconds, of all requests and of the slowest."""
    names = [name for name in PARTS if any(name in one.parts for one in found)]
    rows = [
        [
            *(one.level.number, one.metric, bar_name(one)),
            *(number(one.parts[name]) if name in one.parts else MISSING for name in names),
            number(one.total_ms),
        ]
        for one in found
    ]
    heads = [part_title(found, name).replace(" ", "\n") for name in names]
    return table(("at", "", "requests", *heads, "total"), rows, left=(0, 1, 2), caption="Where the time goes")


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
    parts = request_parts(found).iloc[:1].dropna(axis=1).drop(columns=[FIRST, REST], errors="ignore")
    total = float(parts.sum(axis=1).iloc[0]) if len(parts) else 0.0

    rest = rest_title(here=server_is_here(run), queue="queue" in parts.columns)

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
        *part(*BEFORE),
        f"first content at {at('first_event_ns')}",
        *part("decode", "delivery"),
        *(f"last content at {at('last_event_ns')}", f"ended at {at('ended_ns')}"),
        f"{one['residual_ms']:,.2f} ms are in none of the engine's times"
        if known
        else "the engine reported no times for it",
    ]
    return [line for line in lines if line]
