"""Read the rows of a data set: prompts and conversations in a file of any usual form, or of the Hugging Face hub."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from servebench.contracts.request import Message
from servebench.contracts.settings import TOKENS_MAX, StrictSettings
from servebench.protocol.json_values import join_text
from servebench.protocol.kinds.table import KINDS
from servebench.util.bounded_file import (
    DATASET_BYTES_MAX,
    ROW_VALUES_MAX,
    open_text,
    open_unpacked,
    parse_json,
    suffix_of,
    table_lines,
)
from servebench.util.bounded_parquet import read_parquet
from servebench.util.errors import ConfigError, reason_of
from servebench.util.safe_text import in_one_line
from servebench.workload.sources.prompts import builtin_prompts

FORMATS = (
    "a .jsonl, .json, .csv, .tsv or .parquet whose rows have prompt or messages, a ShareGPT .json, an OpenAI batch file, or "
    "hf:OWNER/NAME"
)
SHOWN_MAX = 80
COLUMNS_SHOWN = 8
HUB = "hf:"
HUB_ROWS_MAX = 20_000
"""How many rows of a hub data set are read: some have hundreds of millions."""

USUAL_FIELDS: Mapping[str, Sequence[str]] = {
    "messages": ("messages", "conversations", "conversation"),
    "prompt": ("prompt", "question", "instruction", "text"),
    "system": ("system", "system_prompt"),
    "answer": ("answer", "response", "completion", "output"),
    "output_tokens": ("output_tokens", "max_tokens", "max_completion_tokens", "max_new_tokens"),
}
SENT_FIELDS = ("tools", "tool_choice", "response_format")
"""Fields of a row that are sent unchanged."""
MESSAGE_FIELDS = ("name", "tool_calls", "tool_call_id")
SET_BY_SERVEBENCH = ("model", "messages", "prompt", "stream", "stream_options")
"""Fields of a whole request body (OpenAI batch files) that are not taken over."""

_ASKING = ("system", "developer", "user", "tool", "function")
_SHAREGPT_ROLES = {"human": "user", **{role: role for role in _ASKING}}


@dataclass(frozen=True, kw_only=True)
class FieldNames(StrictSettings):
    """What a row's fields are called; null: as usual (USUAL_FIELDS)."""

    prompt: str | None = None
    messages: str | None = None
    system: str | None = None
    answer: str | None = None
    output_tokens: str | None = None


@dataclass(frozen=True)
class Row:
    """A conversation: its messages, and how many of them come before each of its requests.

    The message after that many, if there is one, is the recorded answer. `output_tokens` is the longest answer by the row itself;
    `extra` are further body fields.
    """

    messages: tuple[Message, ...]
    turns: tuple[int, ...]
    output_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, turn: int) -> Message | None:
        """Return the recorded answer to a request of the row."""
        return next(iter(self.messages[self.turns[turn] :]), None)


@dataclass(frozen=True)
class Dataset:
    """The rows of a data set, and how many more are conversations in which nobody asks anything."""

    rows: tuple[Row, ...]
    silent: int = 0


def row_of(value: Any, names: FieldNames = FieldNames()) -> Row | None:
    """Return a row of a data set; None for a conversation in which nobody asks. Raises ValueError with what is wrong."""
    if not isinstance(value, Mapping):
        raise ValueError(f"it is {type(value).__name__}, not an object with prompt or messages")
    # a line of an OpenAI batch file is one request, as it is
    batch = isinstance(value.get("body"), Mapping) and "url" in value
    if batch:
        if not str(value["url"]).endswith((KINDS["chat"].path, KINDS["completions"].path)):
            raise ValueError(f"url {in_one_line(str(value['url']), SHOWN_MAX)} is no chat or completion")
        value, names = value["body"], FieldNames()
    found = {what: _field(value, what, name) for what, name in asdict(names).items()}
    talk, prompt = found["messages"], found["prompt"]
    if isinstance(prompt, list):
        talk, prompt = prompt, None
    if not talk and (not isinstance(prompt, str) or not prompt.strip()):
        if isinstance(talk, list):
            return None
        shown = in_one_line(", ".join(map(str, list(value)[:COLUMNS_SHOWN])), SHOWN_MAX)
        raise ValueError(f"it has no prompt and no messages, only {shown or 'nothing'} (workload.fields names them)")
    if prompt == value.get("instruction") and names.prompt is None:
        # the text that an instruction is about (Alpaca, Dolly)
        about = [value.get(name) for name in ("input", "context")]
        prompt = "\n\n".join([str(prompt), *(one for one in about if isinstance(one, str) and one.strip())])
    if talk and not isinstance(talk, list):
        raise ValueError(f"messages is {type(talk).__name__}, not a list")
    messages = (
        [_message(turn, at) for at, turn in enumerate(talk)] if talk else [Message("user", join_text([str(prompt)]))]
    )
    length = _tokens(found["output_tokens"])
    if batch:
        taken = (*SET_BY_SERVEBENCH, *USUAL_FIELDS["output_tokens"])
        extra = {name: item for name, item in value.items() if name not in taken}
        return Row(tuple(messages), (len(messages),), length, extra)
    answer, system = found["answer"], found["system"]
    if not talk and isinstance(answer, str) and answer:
        messages.append(Message("assistant", join_text([answer])))
    if isinstance(system, str) and system.strip():
        messages.insert(0, Message("system", join_text([system])))
    messages = _from_first_question(messages)
    roles = [one.role for one in messages] + ["assistant"]
    turns = tuple(at for at in range(1, len(roles)) if roles[at] == "assistant" != roles[at - 1])
    extra = {name: _parsed(value[name]) for name in SENT_FIELDS if value.get(name)}
    return Row(tuple(messages), turns, length, extra) if messages else None


def _field(value: Mapping[str, Any], what: str, name: str | None) -> Any:
    if name is not None and name not in value:
        raise ValueError(f"it has no field '{name}' (workload.fields.{what})")
    usual = (one for one in USUAL_FIELDS[what] if value.get(one) not in (None, ""))
    # a table of pandas has a column without a name
    found = next((value[one] for one in (usual if name is None else [name])), None)
    return _parsed(found) if what == "messages" else found


def _parsed(value: Any) -> Any:
    """Return a value that a table may hold as JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value


def _message(turn: Any, place: int) -> Message:
    if not isinstance(turn, Mapping) or not isinstance(role := turn.get("role") or turn.get("from"), str):
        raise ValueError(f"messages[{place}] has no role")
    known = _SHAREGPT_ROLES.get(role.lower())
    if known is None and turn.get("role") and role.lower() != "assistant":
        raise ValueError(f"messages[{place}] has the unknown role {in_one_line(role, SHOWN_MAX)!r}")
    extra = {name: turn[name] for name in MESSAGE_FIELDS if turn.get(name)}
    content = next((turn[name] for name in ("content", "value") if turn.get(name) is not None), None)
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            raise ValueError(f"messages[{place}] has content that is not text, which servebench cannot count")
        content = "\n".join(texts)
    if content is None and "tool_calls" in extra:
        extra["content"], content = None, ""
    if not isinstance(content, str):
        raise ValueError(f"messages[{place}] has no text")
    return Message(known or "assistant", join_text([content]), extra)


def _from_first_question(messages: list[Message]) -> list[Message]:
    """Leave out answers before anybody asks, which many chat templates reject; empty if nobody asks."""
    first = next((place for place, one in enumerate(messages) if one.role == "user"), None)
    if first is None:
        return []
    return [one for one in messages[:first] if one.role in ("system", "developer")] + messages[first:]


def _tokens(value: Any) -> int | None:
    """Return the tokens of an answer in a field; a CSV file has a text. Raises ValueError."""
    if value in (None, ""):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if isinstance(value, bool) or not number.is_integer() or not 1 <= number <= TOKENS_MAX:
        shown = in_one_line(str(value), SHOWN_MAX)
        raise ValueError(f"{shown!r} is no length of an answer: a whole number of tokens from 1 to {TOKENS_MAX}")
    return int(number)


class BadRow(ValueError):
    """A row that cannot be read: where it is, and what is wrong."""


Placed = tuple[str, Any]
"""Where a row is, as it follows the name of its file (`:7`), and its value."""


def _line_rows(path: Path) -> Iterator[Placed]:
    with open_unpacked(path, DATASET_BYTES_MAX) as file:
        for number, data in enumerate(file, 1):
            if data.strip():
                yield f":{number}", _json(data, f":{number}")


def _json(data: bytes, place: str) -> Any:
    try:
        return parse_json(data.decode("utf-8-sig").rstrip(), values_max=ROW_VALUES_MAX)
    except UnicodeDecodeError as error:
        raise BadRow(f"{place}: not UTF-8: {error.reason}") from error
    except ValueError as error:
        raise BadRow(f"{place}: not JSON: {_fault(error)}") from error


def _fault(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at column {error.colno}"
    return str(error)


def _json_rows(path: Path) -> Iterator[Placed]:
    """Yield the rows of an array, of an object that is a row or holds lists of rows, or of JSON lines under this suffix."""
    try:
        with open_text(path, DATASET_BYTES_MAX) as file:
            whole = json.load(file)
    except UnicodeDecodeError as error:
        raise BadRow(f": not UTF-8: {error.reason}") from error
    except (ValueError, RecursionError) as error:
        # several objects are lines
        if not str(error).startswith("Extra data"):
            raise BadRow(f":{getattr(error, 'lineno', 1)}: not JSON: {_fault(error)}") from error
        yield from _line_rows(path)
        return
    rows = whole if isinstance(whole, list) else [whole]
    # a trace of an agent is one row, too
    known = {"requests", *(name for names in USUAL_FIELDS.values() for name in names)}
    if isinstance(whole, dict) and not known & whole.keys():
        rows = [row for some in whole.values() if isinstance(some, list) for row in some] or rows
    yield from ((f", row {number}", row) for number, row in enumerate(rows, 1))


def _table_rows(path: Path) -> Iterator[Placed]:
    csv.field_size_limit(DATASET_BYTES_MAX)
    with open_text(path, DATASET_BYTES_MAX, newline="") as file:
        number = 0
        try:
            lines, sign = table_lines(file, "\t" if suffix_of(path) == ".tsv" else ",")
            rows = csv.DictReader(lines, delimiter=sign, strict=True)
            rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
            for row in rows:
                number = rows.line_num
                if None in row or None in row.values():
                    raise BadRow(f":{number}: {'more' if None in row else 'fewer'} values than columns")
                yield f":{number}", row
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadRow(f":{number + 1}: not CSV: {error}") from error


def _parquet_rows(path: Path) -> Iterator[Placed]:
    import pyarrow as pa

    try:
        for number, row in enumerate(read_parquet(path).to_pylist(), 1):
            yield f", row {number}", row
    except (pa.ArrowException, ValueError) as error:
        raise BadRow(f" cannot be read: {next(iter(str(error).splitlines()), type(error).__name__)}") from error


READERS: Mapping[str, Callable[[Path], Iterator[Placed]]] = {
    ".json": _json_rows,
    ".jsonl": _line_rows,
    ".ndjson": _line_rows,
    ".csv": _table_rows,
    ".tsv": _table_rows,
    ".parquet": _parquet_rows,
}


def dataset_faults(dataset: str) -> list[str]:
    """Return why a data set cannot be read, judged by its name, one line each."""
    path = Path(os.path.expanduser(dataset))  # noqa: PTH111 - never raises
    fault = None
    if dataset == "builtin":
        return []
    if dataset.startswith(HUB):
        fault = " needs a package: pip install 'servebench-suite[datasets]'" if find_spec("datasets") is None else None
    elif path.is_dir():
        fault = f" is a folder; set it to a file: {FORMATS}"
    elif suffix_of(path) not in READERS:
        fault = f": unknown file type; set it to {FORMATS}"
    elif not path.is_file():
        fault = f": no such file; set it to {FORMATS}"
    return [] if fault is None else [f"workload.dataset={dataset}{fault}"]


def hub_rows(dataset: str, subset: str | None, split: str) -> Iterator[Placed]:
    """Yield the first rows of a data set of the Hugging Face hub, or of a folder with the same layout."""
    from datasets import load_dataset

    name = dataset.removeprefix(HUB)
    try:
        rows = islice(load_dataset(name, subset, split=split, streaming=True), HUB_ROWS_MAX)
        yield from ((f", row {number}", row) for number, row in enumerate(rows, 1))
    except Exception as error:  # builders, network and formats each raise their own
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(
            f"workload.dataset={dataset} (subset {subset}, split {split}) cannot be read: {reason}; check its name, "
            "workload.subset and workload.split, or download it and set workload.dataset to the file"
        ) from error


def load_dataset_rows(
    dataset: str, subset: str | None = None, split: str = "train", names: FieldNames = FieldNames()
) -> Dataset:
    """Return the rows of `builtin`, of a file, or of a hub data set (`subset` and `split` apply to the hub).

    Raises ConfigError for one that cannot be read or has no row, and for the first row that is wrong, with its line.
    """
    if dataset == "builtin":
        return Dataset(tuple(Row((Message("user", text),), (1,)) for text in builtin_prompts()))
    if faults := dataset_faults(dataset):
        raise ConfigError(faults)
    if dataset.startswith(HUB):
        return _load(dataset, partial(hub_rows, dataset, subset, split), names)
    path = Path(os.path.expanduser(dataset)).absolute()  # noqa: PTH111 - never raises
    return _load_file(dataset, path, path.stat().st_mtime_ns, names)


@lru_cache(maxsize=8)
def _load_file(dataset: str, path: Path, _changed_ns: int, names: FieldNames) -> Dataset:
    return _load(dataset, partial(READERS[suffix_of(path)], path), names)


def _load(dataset: str, read: Callable[[], Iterator[Placed]], names: FieldNames) -> Dataset:
    found: list[Row] = []
    silent = 0
    try:
        for place, value in read():
            try:
                row = row_of(value, names)
            except ValueError as error:
                raise BadRow(f"{place}: {error}") from error
            silent += row is None
            found += [] if row is None else [row]
    except BadRow as error:
        raise ConfigError(f"workload.dataset={dataset}{error}; correct it or leave it out") from error
    except OSError as error:
        raise ConfigError(
            f"workload.dataset={dataset} cannot be read: {reason_of(error)}; set it to {FORMATS}"
        ) from error
    if not found:
        what = f"none of its {silent} conversations has a turn of a user" if silent else "it has no rows"
        raise ConfigError(f"workload.dataset={dataset} has no prompts: {what}; set it to {FORMATS}")
    return Dataset(tuple(found), silent)
