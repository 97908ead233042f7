"""Read prompts: those that ship with servebench, a user's file, or a data set of the Hugging Face hub."""

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

from servebench.protocol.json_values import join_text
from servebench.util.bounded_file import DATASET_BYTES_MAX, open_text
from servebench.util.bounded_parquet import read_parquet
from servebench.util.errors import ConfigError

FORMATS = (
    "a ShareGPT .json, a .jsonl or a .parquet with prompt, messages, conversations, question or text, or hf:OWNER/NAME"
)
COLUMNS_SHOWN = 8
HUB = "hf:"
HUB_ROWS_MAX = 20_000
"""How many rows of a hub data set are read: some have hundreds of millions."""

_USER_ROLES = ("human", "user")
_NOT_ASSISTANT = (*_USER_ROLES, "system", "tool", "function")


@dataclass(frozen=True)
class Prompt:
    """A user's prompt and the answer in the data set, if any."""

    text: str
    answer: str | None = None


def builtin_rows() -> list[dict[str, Any]]:
    """Return the shipped prompts as they are stored: `id`, `source`, `license` and `prompt`."""
    text = files("servebench.workload").joinpath("data", "prompts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


@cache
def builtin_prompts() -> tuple[Prompt, ...]:
    """Return the shipped prompts: HumanEval and GSM8K (MIT), TruthfulQA (Apache-2.0); see data/NOTICE.md."""
    return tuple(Prompt(row["prompt"]) for row in builtin_rows())


@cache
def vocabulary() -> list[str]:
    """Return the lower-case words of three to nine letters in the shipped prompts, in alphabetical order."""
    words = {word for prompt in builtin_prompts() for word in re.findall(r"\b[a-z]{3,9}\b", prompt.text)}
    return sorted(words)


def _prompt(text: str, answer: Any) -> Prompt:
    # a lone surrogate, which JSON can hold, cannot be sent
    return Prompt(join_text([text]), join_text([answer]) if isinstance(answer, str) else None)


def _turn_text(content: Any) -> Any:
    """Return the text of a turn, or that of its parts (as in OpenAI's API) without images and audio."""
    if not isinstance(content, list):
        return content
    parts = [part.get("text") for part in content if isinstance(part, Mapping)]
    return "\n".join(part for part in parts if isinstance(part, str))


def _first_turn(conversation: list[Any]) -> Prompt | None:
    """Return the first user turn, and the answer if it follows immediately."""
    turns = [
        (str(turn.get("from") or turn.get("role")).lower(), _turn_text(turn.get("value") or turn.get("content")))
        for turn in conversation
        if isinstance(turn, Mapping)
    ]
    for index, (role, text) in enumerate(turns):
        if role in _USER_ROLES and isinstance(text, str) and text.strip():
            next_role, answer = turns[index + 1] if index + 1 < len(turns) else ("", None)
            return _prompt(text, None if next_role in _NOT_ASSISTANT else answer)
    return None


def prompt_of(row: Any) -> Prompt | None:
    """Return the prompt in one row of a data set; None when it has none."""
    if not isinstance(row, Mapping):
        return None
    for key in ("conversations", "messages"):
        turns = row.get(key)
        if isinstance(turns, list) and (prompt := _first_turn(turns)) is not None:
            return prompt
    answer = row.get("answer") or row.get("response") or row.get("completion") or row.get("output")
    for key in ("prompt", "question", "instruction", "text"):
        if isinstance(row.get(key), str) and row[key].strip():
            return _prompt(row[key], answer)
    return None


def _parse_json(text: str) -> Any:
    """Return the JSON value; None where it is broken or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _elements(text: str) -> Iterator[Any]:
    """Yield the elements of the first JSON array up to the last complete one: a well-known copy of ShareGPT is truncated."""
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
    """Yield the rows of an array, of an object that is a row or holds lists of rows, or of JSON lines under this suffix."""
    with open_text(path, DATASET_BYTES_MAX, errors="replace") as file:
        text = file.read()
    if text.lstrip()[:1] != "{":
        yield from _elements(text)
        return
    whole = _parse_json(text)
    if isinstance(whole, dict):
        lists = [value for value in whole.values() if isinstance(value, list)]
        yield from [whole] if prompt_of(whole) else [row for rows in lists for row in rows]
        return
    rows = [row for line in text.split("\n") if (row := _parse_json(line)) is not None]
    yield from rows or _elements(text)


_JSON_STARTS = ("{", "[", '"')


def _line_rows(path: Path) -> Iterator[Any]:
    """Yield the rows of the lines that are JSON; broken lines, as in a truncated download, are skipped."""
    with open_text(path, DATASET_BYTES_MAX, errors="replace") as file:
        for line in file:
            if line.lstrip()[:1] in _JSON_STARTS and (row := _parse_json(line)) is not None:
                yield row


def _parquet_rows(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    try:
        yield from read_parquet(path).to_pylist()
    except (pa.ArrowException, ValueError) as error:
        raise OSError(next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")) from error


READERS: Mapping[str, Callable[[Path], Iterator[Any]]] = {
    ".json": _json_rows,
    ".jsonl": _line_rows,
    ".ndjson": _line_rows,
    ".parquet": _parquet_rows,
}


def _path(dataset: str) -> Path:
    try:
        return Path(dataset).expanduser()
    except RuntimeError:  # the home folder of an unknown user
        return Path(dataset)


def dataset_faults(dataset: str, key: str = "workload.dataset") -> list[str]:
    """Return why a data set cannot be read, one line each; `key` is the setting that names it."""
    if dataset == "builtin":
        return []
    if dataset.startswith(HUB):
        missing = f"workload.dataset={dataset} needs a package: pip install 'servebench-suite[datasets]'"
        return [missing] if find_spec("datasets") is None else []
    return _file_faults(dataset, key)


def _file_faults(dataset: str, key: str) -> list[str]:
    path = _path(dataset)
    if path.is_dir():
        return [f"{key}={dataset} is a folder; set it to a file: {FORMATS}"]
    if path.suffix.lower() not in READERS:
        return [f"{key}={dataset}: unknown file type; set it to 'builtin' or {FORMATS}"]
    if not path.is_file():
        return [f"{key}={dataset}: no such file; set it to 'builtin' or {FORMATS}"]
    return []


def _hub_rows(dataset: str, subset: str | None, split: str) -> Iterator[Any]:
    """Yield the first rows of a data set of the Hugging Face hub, or of a folder with the same layout."""
    from datasets import load_dataset

    name = dataset.removeprefix(HUB)
    try:
        yield from islice(load_dataset(name, subset, split=split, streaming=True), HUB_ROWS_MAX)
    except Exception as error:  # builders, network and formats each raise their own
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(
            f"workload.dataset={dataset} (subset {subset}, split {split}) cannot be read: {reason}; check its name, "
            "workload.subset and workload.split, or download it and set workload.dataset to the file"
        ) from error


@cache
def load_prompts(
    dataset: str, subset: str | None = None, split: str = "train", key: str = "workload.dataset"
) -> tuple[Prompt, ...]:
    """Return the prompts of `builtin`, of a file, or of a hub data set. Raises ConfigError when it cannot be read or has
    none. `subset` and `split` apply to the hub; `key` is the setting that names the data set."""
    if dataset == "builtin":
        return builtin_prompts()
    if faults := dataset_faults(dataset, key):
        raise ConfigError(faults)
    path = _path(dataset)
    try:
        rows = _hub_rows(dataset, subset, split) if dataset.startswith(HUB) else READERS[path.suffix.lower()](path)
        first, prompts = _prompts(rows)
    except OSError as error:
        raise ConfigError(f"{key}={dataset} cannot be read: {error.strerror or error}; set it to {FORMATS}") from error
    if not prompts:
        raise ConfigError(f"{key}={dataset} has no prompts: {_describe_row(first)}; set it to {FORMATS}")
    return prompts


def _prompts(rows: Iterator[Any]) -> tuple[Any, tuple[Prompt, ...]]:
    """Return the first row, and the prompts of all rows."""
    first, prompts = None, []
    for row in rows:
        first = row if first is None else first
        if (prompt := prompt_of(row)) is not None:
            prompts.append(prompt)
    return first, tuple(prompts)


def _describe_row(first: Any) -> str:
    """Describe the first row of a file without prompts."""
    if first is None:
        return "it has no JSON rows"
    if isinstance(first, Mapping):
        names = [str(name) for name in first][:COLUMNS_SHOWN]
        return f"its rows have {', '.join(names)}" if names else "its rows have no columns"
    return f"its rows are {type(first).__name__}, not objects"
