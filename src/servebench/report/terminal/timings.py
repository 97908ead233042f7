"""Where the time of requests goes, in the terminal."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from servebench.analysis.slow_tail import SlowTail
from servebench.analysis.time_parts import (
    BEFORE,
    COLUMNS,
    FIRST,
    PARTS,
    REST,
    STAMPS,
    TimeParts,
    request_parts,
)
from servebench.contracts.stored import RunData
from servebench.report.parts import NOT_REPORTED, bar_name, times_of
from servebench.report.terminal.tables import console, new_table
from servebench.util.errors import ConfigError
from servebench.util.figures import MISSING, number
from servebench.util.units import NS_PER_MS

BAR, WIDE_BAR = 30, 44
LETTERS = {
    "client": ("c", "bright_black"),
    "network": ("n", "cyan"),
    "queue": ("q", "red"),
    "prefill": ("p", "yellow"),
    "KV transfer": ("k", "magenta"),
    FIRST: ("u", "yellow"),
    "decode": ("d", "blue"),
    "delivery": ("v", "green"),
    REST: ("a", "blue"),
}
"""The letter of each part, which says without colours what it is, and its colour."""
REQUEST_COLUMNS = (*STAMPS, "last_event_ns", "error", "prompt_tokens", "cached_tokens", "output_tokens", "residual_ms",
                   *COLUMNS.values())  # fmt: skip


def show_time_parts(run: RunData, *, verbose: bool = False) -> None:
    """Print where the time of a run's requests goes, and what its slowest requests have in common; the figures of both where
    that is not a terminal or `verbose`. Raises StoreError."""
    found, out = times_of(run, run.name), console()
    if not found.parts:
        return
    complete = verbose or not out.is_terminal
    if not all(one.reported for one in found.parts):
        out.print(NOT_REPORTED.format(engine=found.engine))
    out.print(bars_table(found.parts))
    if complete:
        out.print(parts_table(found.parts))
    for line in found.lines:
        out.print(line)
    if complete and any(one.factors for one in found.tails):
        out.print(factors_table(found.tails))


def parts_json(run: RunData) -> dict[str, Any]:
    """Return what `show_time_parts` shows as plain data. Raises StoreError."""
    found = times_of(run, run.name)
    return {"parts": [one.as_dict() for one in found.parts], "slow_tail": [one.as_dict() for one in found.tails]}


def show_request(run: RunData, request_id: str) -> None:
    """Print the timeline of one request of a run. Raises ConfigError if it has none of this id, and StoreError."""
    lines = request_lines(run.requests_with(REQUEST_COLUMNS, request_id), request_id)
    if lines is None:
        known = run.requests_with(["request_id"])["request_id"]
        some = f", such as {known.iloc[-1]}" if len(known) else ""
        raise ConfigError(
            f"--request {request_id}: {run.run_id} has no such request; its request_ids{some}, are in requests.parquet"
        )
    for line in lines:
        console().print(line)


def bars_table(found: Sequence[TimeParts]) -> Table:
    """Return a bar of letters for TTFT and E2E of each level, each as wide as the others; its mean is behind it."""
    table = new_table("where the time goes", narrow=True)
    for name in ("at", "", "requests", "", "mean ms"):
        table.add_column(name, justify="right" if name == "mean ms" else "left", no_wrap=True)
    before = ""
    for one in found:
        level = one.level.number
        table.add_row(
            "" if level == before else level, one.metric, bar_name(one), letter_bar(one), number(one.total_ms)
        )
        before = level
    names = [name for name in PARTS if any(name in one.parts for one in found)]
    table.caption = ", ".join(f"{LETTERS[name][0]} {name}" for name in names)
    return table


def letter_bar(one: TimeParts, width: int = WIDE_BAR) -> Text:
    """Return the shares of the parts as letters, `width` in all; a part that would have less than half a letter has none."""
    shares = one.shares
    ends = [round(width * end) for end in accumulate(shares.values())]
    bar = Text()
    for name, start, end in zip(shares, [0, *ends], ends, strict=False):
        letter, style = LETTERS[name]
        bar.append(letter * (end - start), style=style)
    return bar


def parts_table(found: Sequence[TimeParts]) -> Table:
    """Return the mean parts of each level in milliseconds, of all requests and of the slowest."""
    table = new_table("its parts (mean ms)", narrow=True)
    names = [name for name in PARTS if any(name in one.parts for one in found)]
    for name in ("at", "", "requests", *names, "total"):
        table.add_column(name, justify="left" if name in ("", "requests") else "right")
    for one in found:
        cells = (number(one.parts[name]) if name in one.parts else MISSING for name in names)
        table.add_row(one.level.number, one.metric, bar_name(one), *cells, number(one.total_ms))
    return table


def factors_table(tails: Sequence[SlowTail]) -> Table:
    """Return the medians of each factor in the slowest requests and the others, with what the test says."""
    table = new_table("what the slowest may have in common (medians)", narrow=True)
    for name in ("at", "", "factor", "slowest", "others", "more often", "p"):
        table.add_column(name, justify="left" if name in ("", "factor") else "right")
    for one in tails:
        for f in one.factors:
            level = one.level.number
            cells = (number(f.slow), number(f.rest), f"{f.more_often:.0%}", f"{f.p:.2g}")
            table.add_row(level, one.metric, f.kind.title, *cells, style="bold" if f.found else None)
    table.caption = "more often: the share of pairs in which the slow one has more of it (of cached tokens: less)"
    return table


def request_lines(requests: pd.DataFrame, request_id: str) -> list[str] | None:
    """Return the timeline of one stored request; None if there is no such request."""
    found = requests[requests["request_id"] == request_id]
    if found.empty:
        return None
    one = found.iloc[0]

    def at(column: str) -> str:
        return MISSING if pd.isna(one[column]) else f"{(one[column] - one['scheduled_ns']) / NS_PER_MS:,.2f} ms"

    tokens = ", ".join(
        f"{int(one[column])} {words}"
        for column, words in (
            ("prompt_tokens", "tokens in"), ("cached_tokens", "of them cached"), ("output_tokens", "out"),
        )
        if pd.notna(one[column])
    )  # fmt: skip
    lines = [
        f"request {request_id} of {one['point']}: {one['outcome'] if pd.isna(one['error']) else one['error']}",
        tokens,
        "",
        "scheduled at 0.00 ms",
    ]
    parts = request_parts(found).iloc[:1].dropna(axis=1).drop(columns=[FIRST, REST], errors="ignore")
    total = float(parts.sum(axis=1).iloc[0]) if len(parts) else 0.0

    def part(name: str) -> list[str]:
        if name not in parts.columns or parts.empty or name == "client":
            return []
        value = float(parts[name].iloc[0])
        bar = "█" * round(BAR * max(0.0, value) / total) if total else ""
        return [f"  {name:<12} {value:>12,.2f} ms  {bar}".rstrip()]

    lines += [f"sent at {at('sent_ns')}", *(line for name in BEFORE for line in part(name))]
    lines += [f"first content at {at('first_event_ns')}", *part("decode"), *part("delivery")]
    lines += [f"last content at {at('last_event_ns')}", f"ended at {at('ended_ns')}"]
    if pd.notna(one["residual_ms"]):
        lines.append(f"{one['residual_ms']:,.2f} ms are in none of the engine's times")
    else:
        lines.append("the engine reported no times for it")
    return [line for line in lines if line]
