"""The prompts that ship with servebench, and prompts read from a user's file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from servebench.errors import ConfigError

FORMATS = "a ShareGPT .json, a .jsonl or a .parquet with prompt, messages, conversations, question or text"


@dataclass(frozen=True)
class Prompt:
    """A prompt of a person, and the answer that the data set has for it, if any."""

    text: str
    answer: str | None = None


def _builtin_lines() -> list[dict[str, Any]]:
    text = files("servebench.workload").joinpath("data", "prompts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@cache
def builtin() -> tuple[Prompt, ...]:
    """The shipped prompts: HumanEval and GSM8K (MIT), TruthfulQA (Apache-2.0); see data/NOTICE.md."""
    return tuple(Prompt(line["prompt"]) for line in _builtin_lines())


@cache
def vocabulary() -> list[str]:
    """Plain lower-case words of three to nine letters that occur in the shipped prompts, in alphabetical order."""
    words = {word for prompt in builtin() for word in re.findall(r"\b[a-z]{3,9}\b", prompt.text)}
    return sorted(words)


def _turns(conversation: list[Mapping[str, Any]]) -> Prompt | None:
    """The first turn of a person and what came right after it."""
    spoken = [
        (str(turn.get("from") or turn.get("role")), turn.get("value") or turn.get("content"))
        for turn in conversation
        if isinstance(turn, Mapping)
    ]
    for index, (who, what) in enumerate(spoken):
        if who in ("human", "user") and isinstance(what, str) and what.strip():
            follows = spoken[index + 1][1] if index + 1 < len(spoken) else None
            return Prompt(what, follows if isinstance(follows, str) else None)
    return None


def prompt_of(row: Any) -> Prompt | None:
    """The prompt of one row of a data set; None when it has none."""
    if not isinstance(row, Mapping):
        return None
    for key in ("conversations", "messages"):
        turns = row.get(key)
        if turns is not None and not isinstance(turns, str):
            return _turns(list(turns))
    answer = row.get("answer") or row.get("response") or row.get("completion") or row.get("output")
    for key in ("prompt", "question", "instruction", "text"):
        if isinstance(row.get(key), str) and row[key].strip():
            return Prompt(row[key], answer if isinstance(answer, str) else None)
    return None


def _array_rows(path: Path) -> Iterator[Any]:
    """The elements of a JSON array, up to the last whole one: a well-known copy of ShareGPT is cut at its end."""
    text = path.read_text(encoding="utf-8", errors="replace")
    decoder = json.JSONDecoder()
    position = text.find("[") + 1
    while position > 0:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text) or text[position] == "]":
            return
        try:
            row, position = decoder.raw_decode(text, position)
        except ValueError:
            return
        yield row


def _line_rows(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError:
                    continue


def _parquet_rows(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        yield from pq.read_table(path).to_pylist()
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"workload.dataset={path} is no Parquet file: {str(error).splitlines()[0].lower()}"
        ) from error


READERS: Mapping[str, Callable[[Path], Iterator[Any]]] = {
    ".json": _array_rows,
    ".jsonl": _line_rows,
    ".ndjson": _line_rows,
    ".parquet": _parquet_rows,
}


def dataset_faults(dataset: str) -> list[str]:
    """Why a data set cannot be read, one line each."""
    if dataset == "builtin":
        return []
    path = Path(dataset).expanduser()
    if path.suffix not in READERS:
        return [f"workload.dataset={dataset}: unknown kind of file; give 'builtin' or {FORMATS}"]
    if not path.is_file():
        return [f"workload.dataset={dataset}: there is no such file; give 'builtin' or {FORMATS}"]
    return []


@cache
def load(dataset: str) -> tuple[Prompt, ...]:
    """The prompts of `builtin` or of a file. Raises ConfigError when it has none."""
    if dataset == "builtin":
        return builtin()
    path = Path(dataset).expanduser()
    found = tuple(prompt for row in READERS[path.suffix](path) if (prompt := prompt_of(row)) is not None)
    if not found:
        raise ConfigError(f"workload.dataset={dataset} has no prompts in it; give {FORMATS}")
    return found
