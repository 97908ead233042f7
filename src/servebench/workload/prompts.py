"""The prompts that ship with servebench, and prompts read from a user's file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from servebench.util.errors import ConfigError

FORMATS = (
    "a ShareGPT .json, a .jsonl or a .parquet with prompt, messages, conversations, question or text, or hf:OWNER/NAME"
)
COLUMNS_TOLD = 8
HUB = "hf:"
HUB_ROWS_MAX = 20_000
"""How many rows of a data set of the Hugging Face hub are read: some have hundreds of millions."""

_ASKING = ("human", "user")
_NEITHER = (*_ASKING, "system", "tool", "function")


@dataclass(frozen=True)
class Prompt:
    """A prompt of a person, and the answer that the data set has for it, if any."""

    text: str
    answer: str | None = None


def builtin_rows() -> list[dict[str, Any]]:
    """The shipped prompts as they are stored: `id`, `source`, `license` and `prompt`."""
    text = files("servebench.workload").joinpath("data", "prompts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


@cache
def builtin() -> tuple[Prompt, ...]:
    """The shipped prompts: HumanEval and GSM8K (MIT), TruthfulQA (Apache-2.0); see data/NOTICE.md."""
    return tuple(Prompt(row["prompt"]) for row in builtin_rows())


@cache
def vocabulary() -> list[str]:
    """Plain lower-case words of three to nine letters that occur in the shipped prompts, in alphabetical order."""
    words = {word for prompt in builtin() for word in re.findall(r"\b[a-z]{3,9}\b", prompt.text)}
    return sorted(words)


def _sendable(text: str) -> str:
    """Without lone surrogates: JSON can escape half a character, which cannot be encoded to be sent."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _prompt(text: str, answer: Any) -> Prompt:
    return Prompt(_sendable(text), _sendable(answer) if isinstance(answer, str) else None)


def _said(content: Any) -> Any:
    """The text of a turn; that of its parts (as OpenAI's API takes them), pictures and sound left out."""
    if not isinstance(content, list):
        return content
    parts = [part.get("text") for part in content if isinstance(part, Mapping)]
    return "\n".join(part for part in parts if isinstance(part, str))


def _turns(conversation: list[Any]) -> Prompt | None:
    """The first turn of a person, and the answer if one comes right after it."""
    spoken = [
        (str(turn.get("from") or turn.get("role")).lower(), _said(turn.get("value") or turn.get("content")))
        for turn in conversation
        if isinstance(turn, Mapping)
    ]
    for index, (who, what) in enumerate(spoken):
        if who in _ASKING and isinstance(what, str) and what.strip():
            follower, said = spoken[index + 1] if index + 1 < len(spoken) else ("", None)
            return _prompt(what, None if follower in _NEITHER else said)
    return None


def prompt_of(row: Any) -> Prompt | None:
    """The prompt of one row of a data set; None when it has none."""
    if not isinstance(row, Mapping):
        return None
    for key in ("conversations", "messages"):
        turns = row.get(key)
        if isinstance(turns, list) and (found := _turns(turns)) is not None:
            return found
    answer = row.get("answer") or row.get("response") or row.get("completion") or row.get("output")
    for key in ("prompt", "question", "instruction", "text"):
        if isinstance(row.get(key), str) and row[key].strip():
            return _prompt(row[key], answer)
    return None


def _parsed(text: str) -> Any:
    """The JSON value, or None where it is broken (or nested too deep to be anybody's prompt)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _elements(text: str) -> Iterator[Any]:
    """The elements of the first JSON array, up to the last whole one: a well-known copy of ShareGPT is cut at its end."""
    decoder = json.JSONDecoder()
    position = text.find("[") + 1
    while position > 0:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text) or text[position] == "]":
            return
        try:
            row, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        yield row


def _json_rows(path: Path) -> Iterator[Any]:
    """The rows of an array; of an object that is a row, or has lists of rows as values; of lines (a common misnomer)."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if text.lstrip()[:1] != "{":
        yield from _elements(text)
        return
    whole = _parsed(text)
    if isinstance(whole, dict):
        lists = [value for value in whole.values() if isinstance(value, list)]
        yield from [whole] if prompt_of(whole) else [row for rows in lists for row in rows]
        return
    rows = [row for line in text.split("\n") if (row := _parsed(line)) is not None]
    yield from rows or _elements(text)


def _line_rows(path: Path) -> Iterator[Any]:
    """The rows of the lines that are JSON; broken ones are left out, as where a download was cut."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for line in file:
            if line.strip() and (row := _parsed(line)) is not None:
                yield row


def _parquet_rows(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        yield from pq.read_table(path).to_pylist()
    except pa.ArrowException as error:
        raise ValueError(next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")) from error


READERS: Mapping[str, Callable[[Path], Iterator[Any]]] = {
    ".json": _json_rows,
    ".jsonl": _line_rows,
    ".ndjson": _line_rows,
    ".parquet": _parquet_rows,
}


def _path(dataset: str) -> Path:
    try:
        return Path(dataset).expanduser()
    except RuntimeError:  # the home of a user whom this machine does not know
        return Path(dataset)


def dataset_faults(dataset: str, key: str = "workload.dataset") -> list[str]:
    """Why a data set cannot be read, one line each; `key` is where its name came from."""
    if dataset == "builtin":
        return []
    if dataset.startswith(HUB):
        missing = f"workload.dataset={dataset} needs a package: pip install 'servebench-suite[datasets]'"
        return [missing] if find_spec("datasets") is None else []
    return _file_faults(dataset, key)


def _file_faults(dataset: str, key: str) -> list[str]:
    path = _path(dataset)
    if path.is_dir():
        return [f"{key}={dataset} is a folder; give the file in it: {FORMATS}"]
    if path.suffix.lower() not in READERS:
        return [f"{key}={dataset}: unknown kind of file; give 'builtin' or {FORMATS}"]
    if not path.is_file():
        return [f"{key}={dataset}: there is no such file; give 'builtin' or {FORMATS}"]
    return []


def _hub_rows(dataset: str, subset: str | None, split: str) -> Iterator[Any]:
    """The first rows, in their order, of a data set of the Hugging Face hub or of a folder that looks like one."""
    from datasets import load_dataset

    name = dataset.removeprefix(HUB)
    try:
        yield from islice(load_dataset(name, subset, split=split, streaming=True), HUB_ROWS_MAX)
    except Exception as error:  # its builders, its network and its formats each raise their own
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(
            f"workload.dataset={dataset} (subset {subset}, split {split}) cannot be read: {reason}; check its name, "
            "workload.subset and workload.split, or download it and give the file"
        ) from error


@cache
def load(
    dataset: str, subset: str | None = None, split: str = "train", key: str = "workload.dataset"
) -> tuple[Prompt, ...]:
    """The prompts of `builtin`, of a file, or of a data set of the hub. Raises ConfigError when it cannot be read or has
    none. `subset` and `split` are for the hub's; `key` is where the name came from."""
    if dataset == "builtin":
        return builtin()
    if faults := dataset_faults(dataset, key):
        raise ConfigError(faults)
    path = _path(dataset)
    try:
        rows = _hub_rows(dataset, subset, split) if dataset.startswith(HUB) else _rows(path, key)
        first, found = _prompts(rows)
    except OSError as error:
        raise ConfigError(
            f"{key}={dataset} cannot be read: {error.strerror or error}; check it or give {FORMATS}"
        ) from error
    if not found:
        raise ConfigError(f"{key}={dataset} has no prompts in it: {_instead(first)}; give {FORMATS}")
    return found


def _rows(path: Path, key: str) -> Iterator[Any]:
    try:
        yield from READERS[path.suffix.lower()](path)
    except ValueError as error:
        raise ConfigError(f"{key}={path} is no Parquet file: {error}; give {FORMATS}") from error


def _prompts(rows: Iterator[Any]) -> tuple[Any, tuple[Prompt, ...]]:
    """The first row, and the prompts of all."""
    first, found = None, []
    for row in rows:
        first = row if first is None else first
        if (prompt := prompt_of(row)) is not None:
            found.append(prompt)
    return first, tuple(found)


def _instead(first: Any) -> str:
    """What a file without prompts has, by its first row."""
    if first is None:
        return "it has no row that is JSON"
    if isinstance(first, Mapping):
        names = [str(name) for name in first][:COLUMNS_TOLD]
        return f"its rows have {', '.join(names)}" if names else "its rows have no columns"
    return f"its rows are {type(first).__name__}, not objects"
