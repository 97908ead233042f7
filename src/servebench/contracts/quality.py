"""What passes between a scorer and what asks the engine: questions out, answers in, grades out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from servebench.contracts.request import Request
from servebench.contracts.results import Outcome, Record
from servebench.contracts.settings import QualitySettings
from servebench.util.wheel_file import PackagedFile

DIGEST_LENGTH = 16


@dataclass(frozen=True, kw_only=True)
class Item:
    """One question. `expected` is the right answer in the scorer's own form; `item_id` is the same for every engine.

    `task` is the part of the benchmark that it belongs to (a subject, a task of a harness). `messages` stand in place of
    `prompt` where a conversation is asked; `body` is added to the request (`response_format`, `stop`).
    """

    item_id: str
    prompt: str
    expected: str
    max_tokens: int
    task: str | None = None
    messages: tuple[Mapping[str, str], ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """What tells a question from another of the same id: all that the engine is asked, and the right answer."""
        parts = (self.prompt, [sorted(one.items()) for one in self.messages], sorted(self.body.items()), self.expected)
        return hashlib.sha256(repr((*parts, self.max_tokens)).encode()).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True, kw_only=True)
class ItemAnswer:
    """What the engine said to one item. `error` is one line when it said nothing; `text` is then empty.

    `outcome` is that of the request, in the words of requests.parquet. Stamps are CLOCK_REALTIME nanoseconds;
    `latency_ms` is from sent to the last byte, by a monotonic clock. Counts of tokens are the server's usage; null is not
    told. `tokens` and their `logprobs` are there where they were asked for and told.
    """

    item_id: str
    text: str
    error: str | None = None
    outcome: Outcome = "ok"
    http_status: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    sent_ns: int | None = None
    ended_ns: int | None = None
    latency_ms: float | None = None
    tokens: Sequence[str] | None = None
    logprobs: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class Grade:
    """`correct` is None when the item was never answered; `extracted` is what was read out of the answer, if anything.

    `score`, from 0 to 1, is for measures that are more than right or wrong; `note` says in a line why it is so. `detail`
    is what else the scorer keeps of an answer, as plain data; it is stored as JSON.
    """

    correct: bool | None
    extracted: str | None
    score: float | None = None
    note: str | None = None
    detail: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One item with its answer and its grade."""

    item: Item
    answer: ItemAnswer
    grade: Grade


class AnswerStore(Protocol):
    """Answers that are on disk as they come, so that a study that was stopped does not ask for them again."""

    @property
    def known(self) -> Mapping[str, ItemAnswer]:
        """Those of an earlier attempt, by their key; none that failed."""
        ...

    def add(self, key: str, answer: ItemAnswer) -> None:
        """Keep one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the engine under test answers. `base_url` ends in `/v1`; `headers` may hold an API key.

    `tokenizer` is a folder, a file or an id of the model's tokenizer, where it is known. A scorer that asks itself keeps its
    answers in `memory`, and calls `watch` a few times a second with what it does and how much of it is done: what that
    raises (the engine died) ends the asking.
    """

    base_url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    verify_tls: bool = True
    tokenizer: str | None = None
    memory: AnswerStore | None = None
    watch: Callable[[str], None] | None = None


class Scorer:
    """Makes items from a file and grades answers. Both are pure of the engine: the same file and seed give the same items.

    A scorer that brings a harness of its own sets `asks_itself` and implements `evaluate` instead of the two. One that
    judges what the measured load answered, and asks nothing, sets `grades_load` and implements `grade_load`.
    """

    name: ClassVar[str]
    method: ClassVar[str]
    """How an answer is graded, in a few words, so that figures of other methods are not compared with it."""
    settings_type: ClassVar[type[QualitySettings]] = QualitySettings
    source: ClassVar[PackagedFile | Path | None] = None
    """Where the questions are when `quality.path` names none: in a wheel of the package index, or in a file beside the
    scorer. With neither, the user must give `quality.path`."""
    asks_itself: ClassVar[bool] = False
    grades_load: bool = False
    """May depend on the settings: set it in `__init__` then."""
    load_reference: ClassVar[str] = ""
    """For `grades_load`: the key of a request's reference that it needs (`Workload.reference_keys`)."""

    def __init__(self, settings: QualitySettings | None = None) -> None:
        self.settings = settings if settings is not None else self.settings_type(name=self.name)

    def check(self) -> list[str]:
        """What makes it impossible on this machine, one line each: a missing package, a setting. Changes nothing."""
        return []

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """A sample of `count` items (all, where there are fewer). Raises ConfigError when the file cannot be used."""
        raise NotImplementedError

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """Judge one answer."""
        raise NotImplementedError

    def evaluate(self, endpoint: Endpoint, *, count: int | None, concurrency: int) -> Sequence[Judged]:
        """For `asks_itself`: ask the endpoint `count` items (null: all) of each task. Raises QualityError."""
        raise NotImplementedError

    def grade_load(self, requests: Sequence[Request], records: Sequence[Record]) -> Sequence[Judged]:
        """For `grades_load`: judge the answers of one point, warm-up left out; called after each point. Nothing comes back
        for requests that this scorer cannot judge, and a failed request is `correct=None`."""
        raise NotImplementedError
