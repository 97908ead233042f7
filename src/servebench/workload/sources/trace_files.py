"""Read traces of real services in their published formats: arrivals and lengths, never text."""

import math
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from servebench.contracts.settings import TOKENS_MAX
from servebench.util.bounded_file import suffix_of
from servebench.util.errors import ConfigError
from servebench.util.safe_text import in_one_line
from servebench.util.trace_files import SHOWN_MAX, SUFFIXES, Recorded, json_lines, read_recorded

FORMATS = "a Mooncake or Bailian .jsonl (timestamp, input_length, output_length, hash_ids), a BurstGPT or an Azure .csv"
MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
BUILTIN_BLOCK_TOKENS = 64
SPAN_S_MAX = 366 * 86_400

_LENGTHS = (
    ("input_length", "output_length"),  # Mooncake
    ("Request tokens", "Response tokens"),  # BurstGPT
    ("ContextTokens", "GeneratedTokens"),  # Azure
)


@dataclass(frozen=True)
class TraceRow:
    """One request of a trace. `arrival_s` counts from the first request; equal `blocks` at a place mean equal text, of
    `block_tokens` where the trace says it."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int | None = None


class TraceRows(tuple[TraceRow, ...]):
    """The rows of a trace in order of arrival, and how many more lack input, output or a time (failures)."""

    failures: int


@cache
def trace_rows(path: str) -> TraceRows:
    """Return the rows of `builtin` or of a file. Raises ConfigError for one that is missing, of another type, or empty."""
    if path == "builtin":
        text = files("servebench.workload").joinpath("data", "trace.jsonl").read_text(encoding="utf-8")
        rows = [_row(one, path) for one in json_lines(text.splitlines())]
    elif faults := trace_faults(path):
        raise ConfigError(faults)
    else:
        rows = [_row(one, path) for one in read_recorded(path, "workload.path", FORMATS)]
    found = TraceRows(_in_order(rows, path))
    if not found:
        raise ConfigError(f"workload.path={path} has no request with input and output; use {FORMATS}")
    found.failures = len(rows) - len(found)
    return found


def trace_faults(path: str) -> list[str]:
    """Return why a trace cannot be read, judged by its name."""
    file = Path(path)
    if path == "builtin":
        return []
    if suffix_of(file) not in SUFFIXES:
        return [f"workload.path={path}: unknown file type; use {FORMATS}"]
    return [] if file.expanduser().is_file() else [f"workload.path={path}: no such file; use {FORMATS}"]


def _row(recorded: Recorded, path: str) -> TraceRow:
    values = recorded.values
    names = next((names for names in _LENGTHS if values.keys() >= set(names)), None)
    if names is None:
        shown = in_one_line(", ".join(map(str, values)), SHOWN_MAX)
        raise ConfigError(f"workload.path={path}, {recorded.place}: no lengths, only {shown}; use {FORMATS}")
    try:
        blocks = tuple(int(block) for block in values.get("hash_ids") or ())
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"workload.path={path}, {recorded.place}: hash_ids must be numbers; use {FORMATS}") from error
    place = f"workload.path={path}, {recorded.place}"
    prompt, answer = (_count(values[name], f"{place}: {name}") for name in names)
    stated = values.get("block_size", BAILIAN_BLOCK_TOKENS if "chat_id" in values else None)
    size = None if stated is None else _count(stated, f"{place}: block_size")
    return TraceRow(recorded.arrival_s, prompt, answer, blocks, size)


def _count(value: object, what: str) -> int:
    """Return the token count in a cell; a missing one is 0."""
    try:
        number = float(str(value or 0))
    except (ValueError, OverflowError):
        number = -1.0
    if not (0 <= number <= TOKENS_MAX and number.is_integer()):
        raise ConfigError(
            f"{what} has the value {in_one_line(str(value), SHOWN_MAX)!r}; token counts are whole numbers, and the maximum is "
            f"{TOKENS_MAX}"
        )
    return int(number)


def _in_order(rows: list[TraceRow], path: str) -> tuple[TraceRow, ...]:
    if any(math.isinf(row.arrival_s) for row in rows):
        raise ConfigError(
            f"workload.path={path} has a request at an infinite time; remove the rows that do not belong to it"
        )
    kept = sorted(
        (row for row in rows if row.input_tokens > 0 and row.output_tokens > 0 and math.isfinite(row.arrival_s)),
        key=lambda row: row.arrival_s,
    )
    first_s = kept[0].arrival_s if kept else 0.0
    if kept and kept[-1].arrival_s - first_s > SPAN_S_MAX:
        raise ConfigError(
            f"workload.path={path} has a request {kept[-1].arrival_s - first_s:.4g} s after the first; the maximum is "
            f"{SPAN_S_MAX} s (a year): remove the rows that do not belong to it"
        )
    return tuple(replace(row, arrival_s=row.arrival_s - first_s) for row in kept)
