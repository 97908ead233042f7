"""Graded answers: quality.parquet, and the log of answers that are not graded yet, so that a kill -9 loses none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import orjson

from servebench.contracts.columns import kind_of
from servebench.contracts.quality import ItemAnswer
from servebench.contracts.results import SCHEMA_VERSION, QualityRecord
from servebench.store.files import VERSION_KEY, writing
from servebench.store.layout import RunFolder
from servebench.store.tables import append_table, arrow_type, read_table
from servebench.util.redaction import known_secrets, redact_text, without_known

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def _schema() -> pa.Schema:
    import pyarrow as pa

    hints = get_type_hints(QualityRecord)
    columns = [(name, arrow_type(kind_of(hint))) for name, hint in hints.items()]
    return pa.schema(columns, {VERSION_KEY: str(SCHEMA_VERSION)})


def add_quality(folder: RunFolder, records: Sequence[QualityRecord]) -> None:
    """Write graded answers behind those that are stored already. Raises StoreError."""
    import pyarrow as pa

    if records:
        secrets = known_secrets()
        rows = [{name: _clean(name, value, secrets) for name, value in asdict(one).items()} for one in records]
        append_table(folder.quality, pa.Table.from_pylist(rows, schema=_schema()))


def _clean(name: str, value: Any, secrets: Sequence[str]) -> Any:
    """Return a value without secrets that a server repeated: from errors whatever looks like one, else the known ones."""
    if name == "calls" and value:
        return [{key: without_known(text, secrets) for key, text in call.items()} for call in value]
    if not isinstance(value, str):
        return value
    return redact_text(value, secrets) if name == "error" else without_known(value, secrets)


def read_quality(folder: RunFolder) -> pd.DataFrame:
    """Return the graded answers of a run; empty, with all columns, when there are none. Raises StoreError."""
    table = read_table(folder.quality, _schema())
    frame: pd.DataFrame = (_schema().empty_table() if table is None else table).to_pandas(use_threads=False)
    return frame


class AnswerLog:
    """Answers of one benchmark at one concurrency, each on disk as soon as it is there. Use as a context manager."""

    def __init__(self, folder: RunFolder, benchmark: str, concurrency: int) -> None:
        self._path = _log(folder, benchmark, concurrency)
        self.known = dict(self._read())
        """Answers of an earlier attempt, by the digest of their item; those that failed are not among them."""
        with writing(self._path):
            self._path.parent.mkdir(exist_ok=True)
            self._file = self._path.open("ab")
            # what follows must not join the line that a kill cut off
            self._file.write(b"\n")

    def __enter__(self) -> AnswerLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read(self) -> Iterator[tuple[str, ItemAnswer]]:
        if not self._path.exists():
            return
        for line in self._path.read_bytes().splitlines():
            try:
                found: dict[str, Any] = orjson.loads(line)
                answer = ItemAnswer(**found["answer"])
            except (ValueError, TypeError, KeyError):
                # empty, or the line that a kill cut off
                continue
            if answer.error is None:
                yield str(found["digest"]), answer

    def add(self, digest: str, answer: ItemAnswer) -> None:
        """Append one. Raises StoreError."""
        with writing(self._path):
            secrets = known_secrets()
            kept = {name: _clean(name, value, secrets) for name, value in asdict(answer).items()}
            self._file.write(orjson.dumps({"digest": digest, "answer": kept}) + b"\n")
            self._file.flush()


def discard_answers(folder: RunFolder, benchmark: str, concurrency: int) -> None:
    """Remove the log of answers that are graded and stored."""
    _log(folder, benchmark, concurrency).unlink(missing_ok=True)


def graded_questions(folder: RunFolder) -> set[tuple[str, int]]:
    """Return the scorers and concurrencies whose questions have stored grades. Raises StoreError."""
    frame = read_quality(folder)
    frame = frame[frame["point"].isna()]
    names = [str(name).partition(".")[0] for name in frame["benchmark"]]
    return set(zip(names, (int(level) for level in frame["concurrency"]), strict=True))


def discard_graded_answers(folder: RunFolder) -> None:
    """Remove the logs that a kill left behind stored grades. Raises StoreError."""
    if any(folder.raw.glob("answers-*.jsonl")):
        for scorer, concurrency in graded_questions(folder):
            discard_answers(folder, scorer, concurrency)


def _log(folder: RunFolder, benchmark: str, concurrency: int) -> Path:
    return folder.raw / f"answers-{benchmark}-c{concurrency}.jsonl"
