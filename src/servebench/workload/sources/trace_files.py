"""Read traces of real services in their published formats: arrivals and lengths, never text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TextIO

from servebench.contracts.settings import TOKENS_MAX
from servebench.util.bounded_file import DATASET_BYTES_MAX, open_text, parse_json
from servebench.util.errors import ConfigError, reason_of
from servebench.util.safe_text import in_one_line
from servebench.util.units import NS_PER_S

FORMATS = "a Mooncake .jsonl (timestamp in ms, input_length, output_length, hash_ids), a BurstGPT or an Azure .csv"
MOONCAKE_BLOCK_TOKENS = 512
COLUMNS_MAX = 100
HEADER_CHARACTERS_MAX = 1 << 16
BUILTIN_BLOCK_TOKENS = 64
SPAN_S_MAX = 366 * 86_400
SHOWN_MAX = 80

_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("Timestamp", "Request tokens", "Response tokens"),  # BurstGPT, seconds
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),  # Azure, dates with a time
)


@dataclass(frozen=True)
class TraceRow:
    """One request of a trace. `arrival_s` counts from the first request; equal `blocks` at a place mean equal text."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


@cache
def trace_rows(path: str) -> tuple[TraceRow, ...]:
    """Return the rows of `builtin` or of a file in order of arrival, without rows that lack input or output (failures).

    Raises ConfigError for a file that is missing, of another type, or empty.
    """
    if path == "builtin":
        text = files("servebench.workload").joinpath("data", "trace.jsonl").read_text(encoding="utf-8")
        return _rows(text, path)
    if faults := trace_faults(path):
        raise ConfigError(faults)
    file = Path(path).expanduser()
    try:
        with open_text(file, DATASET_BYTES_MAX) as opened:
            found = _table(opened, file) if file.suffix.lower() == ".csv" else _rows(opened.read(), path)
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else error
        raise ConfigError(f"workload.path={path} cannot be read: {reason}; set it to {FORMATS}") from error
    if not found:
        raise ConfigError(f"workload.path={path} has no request with input and output; set it to {FORMATS}")
    return found


def trace_faults(path: str) -> list[str]:
    """Return why a trace cannot be read, judged by its name."""
    file = Path(path)
    if path == "builtin":
        return []
    if file.suffix.lower() not in (".csv", ".jsonl", ".ndjson"):
        return [f"workload.path={path}: unknown file type; set it to {FORMATS}"]
    return [] if file.expanduser().is_file() else [f"workload.path={path}: no such file; set it to {FORMATS}"]


def _rows(text: str, path: str) -> tuple[TraceRow, ...]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(_mooncake(parse_json(line)))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise ConfigError(
                f"workload.path={path}, line {number}: not a request ({error}); the format is {FORMATS}"
            ) from error
    return _in_order(rows, path)


def _mooncake(row: Mapping[str, Any]) -> TraceRow:
    return TraceRow(
        float(row["timestamp"]) / 1000,
        int(row["input_length"]),
        int(row["output_length"]),
        tuple(int(block) for block in row.get("hash_ids") or ()),
    )


def _table(opened: TextIO, file: Path) -> tuple[TraceRow, ...]:
    import pandas as pd

    header = opened.readline(HEADER_CHARACTERS_MAX)
    if header.count(",") >= COLUMNS_MAX or len(header) == HEADER_CHARACTERS_MAX:
        raise ConfigError(f"workload.path={file} has more than {COLUMNS_MAX} columns; set it to {FORMATS}")
    opened.seek(0)
    try:
        table = pd.read_csv(opened)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ConfigError(
            f"workload.path={file} is not a CSV file: {str(error).strip()}; set it to {FORMATS}"
        ) from error
    names = next((names for names in _COLUMNS if set(names) <= set(table.columns)), None)
    if names is None:
        found = ", ".join(map(str, table.columns[:8]))
        raise ConfigError(f"workload.path={file} has the columns {found}; set it to {FORMATS}")
    arrival, inputs, outputs = (table[name] for name in names)
    try:
        if not pd.api.types.is_numeric_dtype(arrival):
            # pandas chooses the unit by the decimals of the data
            moments = pd.to_datetime(arrival, format="ISO8601", utc=True).dt.as_unit("ns")
            arrival = moments.astype("int64").where(moments.notna()) / NS_PER_S
        times = pd.to_numeric(arrival).tolist()
    except (ValueError, OverflowError) as error:
        reason = in_one_line(str(error).splitlines()[0], SHOWN_MAX)
        raise ConfigError(f"workload.path={file}: column {names[0]}: {reason}; set it to {FORMATS}") from error
    columns = [times, *(_counts(column.tolist(), str(column.name), file) for column in (inputs, outputs))]
    return _in_order([TraceRow(at_s, prompt, answer) for at_s, prompt, answer in zip(*columns, strict=True)], str(file))


def _counts(values: list[Any], name: str, file: Path) -> list[int]:
    """Return the token counts of a column; a missing one is 0."""
    found = []
    for value in values:
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = -1.0
        if math.isnan(number):
            number = 0.0
        if not (0 <= number <= TOKENS_MAX and number.is_integer()):
            raise ConfigError(
                f"workload.path={file}: column {name} has the value {in_one_line(str(value), SHOWN_MAX)!r}; token counts are "
                f"whole numbers, and the maximum is {TOKENS_MAX}"
            )
        found.append(int(number))
    return found


def _in_order(rows: list[TraceRow], path: str) -> tuple[TraceRow, ...]:
    for row in rows:
        if min(row.input_tokens, row.output_tokens) < 0 or math.isinf(row.arrival_s):
            raise ConfigError(
                f"workload.path={path} has a request of {row.input_tokens} input and {row.output_tokens} output tokens "
                f"at {row.arrival_s:g} s: times must be finite, and token counts 0 or more"
            )
    longest = max((max(row.input_tokens, row.output_tokens) for row in rows), default=0)
    if longest > TOKENS_MAX:
        raise ConfigError(f"workload.path={path} has a request of {longest} tokens; the maximum is {TOKENS_MAX}")
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
    return tuple(TraceRow(row.arrival_s - first_s, row.input_tokens, row.output_tokens, row.blocks) for row in kept)
