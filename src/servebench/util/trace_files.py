"""Recorded requests of real services, read from the formats in which such traces are published."""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from servebench.util.bounded_file import DATASET_BYTES_MAX, open_text, parse_json, suffix_of, table_lines
from servebench.util.errors import ConfigError, reason_of
from servebench.util.safe_text import in_one_line
from servebench.util.units import MS_PER_S

TABLES = (".csv", ".tsv")
SUFFIXES = (".jsonl", ".ndjson", *TABLES)
LINE_CHARACTERS_MAX = 1 << 20
SHOWN_MAX = 80
COLUMNS_SHOWN = 8


class Recorded(NamedTuple):
    """A request of a trace: where it stands in its file, when it arrived (seconds, NaN for none), and its other values."""

    place: str
    arrival_s: float
    values: Mapping[str, Any]


def read_recorded(name: str, key: str, formats: str) -> Iterator[Recorded]:
    """Yield the requests of a file: JSON lines with a `timestamp` in ms (Mooncake), or in s beside a `chat_id` (Bailian),
    or a CSV file with a column `timestamp` in seconds (BurstGPT) or as a date (Azure). Raises ConfigError, which names the
    setting `key` and the `formats` to use."""
    path = Path(name).expanduser()
    try:
        with open_text(path, DATASET_BYTES_MAX, newline="") as file:
            yield from (_csv_rows if suffix_of(path) in TABLES else json_lines)(
                iter(partial(file.readline, LINE_CHARACTERS_MAX), "")
            )
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else error
        raise ConfigError(f"{key}={name} cannot be read: {reason}; use {formats}") from error
    except ValueError as error:
        raise ConfigError(f"{key}={name}{error}; use {formats}") from error


def json_lines(lines: Iterable[str]) -> Iterator[Recorded]:
    """Yield the requests of JSON lines. Raises ValueError, which continues a sentence that names the file."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                values = parse_json(line)
                unit = 1 if "chat_id" in values else MS_PER_S
                yield Recorded(f"line {number}", float(values["timestamp"]) / unit, values)
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                raise ValueError(f", line {number}: no request with a timestamp in ms") from error


def _csv_rows(lines: Iterator[str]) -> Iterator[Recorded]:
    lines, sign = table_lines(lines)
    rows = csv.DictReader(lines, delimiter=sign)
    names = rows.fieldnames or ()
    column = next((one for one in names if one.strip().lower() == "timestamp"), None)
    if column is None:
        columns = in_one_line(", ".join(names[:COLUMNS_SHOWN]), SHOWN_MAX) or "none: the file is empty"
        raise ValueError(f" has no column 'timestamp' (columns: {columns})")
    for row in rows:
        try:
            yield Recorded(f"line {rows.line_num}", _seconds(row[column] or ""), row)
        except (ValueError, OverflowError) as error:
            shown = in_one_line(str(row[column]), SHOWN_MAX)
            raise ValueError(f", line {rows.line_num}: {shown!r} is not a time") from error


def _seconds(text: str) -> float:
    if not text.strip():
        return math.nan
    try:
        return float(text)
    except ValueError:
        # with up to seven decimals
        date = datetime.fromisoformat(text.strip())
        return date.replace(tzinfo=date.tzinfo or UTC).timestamp()
