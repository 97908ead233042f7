"""Reads JSON lines from a file, gzipped or not, or from a member of a package's wheel (`file.whl!folder/member.jsonl`)."""

from __future__ import annotations

import gzip
import random
import zipfile
import zlib
from pathlib import Path
from typing import Any

import orjson

from servebench.util.errors import ConfigError

_GZIP = b"\x1f\x8b"
ANSWERS = "quality.parquet"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every row of the file. Raises ConfigError with the path when it is missing, has none, or a line is no JSON object."""
    outer, _, member = str(path).partition("!")
    try:
        if member:
            with zipfile.ZipFile(outer) as wheel:
                content = wheel.read(member)
        else:
            content = Path(outer).read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
    except (OSError, KeyError, EOFError, zlib.error, zipfile.BadZipFile) as problem:
        raise ConfigError(f"questions cannot be read from {path}: {problem}; give a file of JSON lines") from problem
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as problem:
            raise ConfigError(f"line {number} of {path} is not JSON: {problem}; mend or remove it") from problem
        if not isinstance(row, dict):
            raise ConfigError(f"line {number} of {path} is not a JSON object; mend or remove it")
        rows.append(row)
    if not any(rows):
        raise ConfigError(f"{path} has no questions; give a file of JSON lines, one question a line")
    return rows


def examples(rows: list[dict[str, Any]], count: int, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """`count` rows to be shown solved, and the rows with those left out as empty ones, so that places stay the same."""
    shown = set(random.Random(f"examples-{seed}").sample(range(len(rows)), min(count, len(rows))))
    left = [{} if place in shown else row for place, row in enumerate(rows)]
    return [rows[place] for place in sorted(shown)], left


def sample(rows: list[dict[str, Any]], count: int, seed: int) -> list[tuple[int, dict[str, Any]]]:
    """`count` rows with their places in the file, in file order; all where there are fewer. Same seed, same rows.

    Empty rows are not drawn.
    """
    there = [place for place, row in enumerate(rows) if row]
    chosen = sorted(random.Random(seed).sample(there, min(count, len(there))))
    return [(place, rows[place]) for place in chosen]


def read_answers(place: Path) -> list[dict[str, Any]]:
    """The answers that a run of quality kept: of its folder, or of the table itself. Raises ConfigError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = place / ANSWERS if place.is_dir() else place
    columns = ["benchmark", "item_id", "prompt", "answer", "outcome"]
    try:
        rows: list[dict[str, Any]] = pq.read_table(table, columns=columns).to_pylist()
    except (OSError, pa.ArrowException, KeyError) as problem:
        said = str(problem).splitlines()[0]
        raise ConfigError(f"{table} has no answers that can be read: {said}; give the folder of a run") from problem
    return rows
