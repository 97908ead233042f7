"""Where the time of requests goes, in the terminal."""

from collections.abc import Sequence

import pandas as pd
from rich.table import Table

from servebench.analysis.time_parts import BEFORE, PARTS, TimeParts, request_parts, time_parts
from servebench.contracts.stored import RunData
from servebench.report.terminal.tables import console, new_table
from servebench.util.errors import ConfigError
from servebench.util.figures import MISSING, number
from servebench.util.units import NS_PER_MS

BAR = 30


def show_time_parts(run: RunData) -> None:
    """Print where the time of a run's requests goes; nothing where its engine reports no times. Raises StoreError."""
    found = time_parts(run)
    if found:
        out = console()
        out.print(parts_table(found))
        for line in parts_lines(found, run.fact("engine") or "the engine"):
            out.print(line)


def show_request(run: RunData, request_id: str) -> None:
    """Print the timeline of one request of a run. Raises ConfigError if it has none of this id, and StoreError."""
    requests = run.requests
    lines = request_lines(requests, request_id)
    if lines is None:
        some = f", such as {requests['request_id'].iloc[-1]}" if len(requests) else ""
        raise ConfigError(
            f"--request {request_id}: {run.run_id} has no such request; its request_ids{some}, are in requests.parquet"
        )
    for line in lines:
        console().print(line)


def parts_table(found: Sequence[TimeParts]) -> Table:
    """Return the mean parts of each level in milliseconds, of all requests and of the slowest."""
    table = new_table("where the time goes (mean ms)", narrow=True)
    names = [name for name in PARTS if any(name in one.parts for one in found)]
    for name in ("at", "requests", *names, "total"):
        table.add_column(name, justify="left" if name == "requests" else "right")
    for one in found:
        cells = (number(one.parts[name]) if name in one.parts else MISSING for name in names)
        table.add_row(one.level, f"{one.group} ({one.n})", *cells, number(one.total_ms))
    return table


def parts_lines(found: Sequence[TimeParts], engine: str) -> list[str]:
    """Return what TTFT is for the most part, a line for each level."""
    lines = []
    for one in found:
        if one.group != "all" or one.ttft_ms <= 0:
            continue
        name, share = one.largest_of_ttft
        words = {"queue": f"waiting in {engine}'s queue", "network": "network and the server's front end"}
        if "queue" not in one.parts:
            words["network"] += f", or its queue ({engine} reports no queue time)"
        lines.append(f"at {one.level}: {share:.0%} of TTFT is {words.get(name, name)}")
    return lines


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
    parts = request_parts(found).iloc[:1].dropna(axis=1)
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
