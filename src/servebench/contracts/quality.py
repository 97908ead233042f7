"""Quality: the questions that a scorer makes, the answers of the engine, and their grades."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from servebench.contracts.request import Request
from servebench.contracts.results import Outcome, Record, Thinking
from servebench.contracts.settings import QualitySettings
from servebench.util.thinking import split_thinking
from servebench.util.tls import Trust
from servebench.util.wheel_file import PackagedFile

DIGEST_LENGTH = 16


@dataclass(frozen=True, kw_only=True)
class Item:
    """One question. `expected` is the right answer in the scorer's own form; `item_id` is the same for every engine.

    `task` is the part of the benchmark that it belongs to (a subject, a task of a harness). `messages` replace `prompt`
    where the question is a conversation (`role` and `content` of each); `body` is added to the request (`response_format`,
    `stop`).
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
        """Identifies the question among those of the same id: a hash of all that is sent, and the right answer."""
        parts = (self.prompt, [sorted(one.items()) for one in self.messages], sorted(self.body.items()), self.expected)
        return hashlib.sha256(repr((*parts, self.max_tokens)).encode()).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True, kw_only=True)
class ItemAnswer:
    """The engine's answer to one item. Without an answer `error` is one line and `text` is empty.

    `outcome` is that of the request, as in requests.parquet. Stamps are CLOCK_REALTIME nanoseconds; `latency_ms` is from
    sent to the last byte, by a monotonic clock. Token counts are the server's usage, null if it reports none. `tokens` and
    `logprobs` are set where they were requested and returned. `reasoning` is thinking that is not part of `text`; `calls` are
    the tool calls, the `name` and `arguments` (as sent) of each, null without any.
    """

    item_id: str
    text: str
    reasoning: str = ""
    thinking: Thinking | None = None
    calls: Sequence[Mapping[str, str]] | None = None
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

    def to_grade(self, *, cut: bool = True) -> Self:
        """Return the answer with the text that is graded, and `thinking`, which says how that was found.

        With `cut` this is what follows the thinking, and an answer that ends inside its thinking has an error: it counts as not
        answered. Otherwise it is thinking and answer as one text.
        """
        if self.error is not None or self.thinking is not None:
            return self
        thinking, rest = split_thinking(self.text, self.reasoning)
        if rest is None and self.calls:
            rest = ""
        if rest is not None and not thinking.strip():
            return replace(self, text=rest) if cut else self
        if not cut:
            return replace(self, text=self.reasoning + self.text, thinking="graded")
        if rest is None:
            error = "the answer ended inside its thinking"
            return replace(self, text="", reasoning=thinking, thinking="unfinished", error=error)
        return replace(self, text=rest, reasoning=thinking, thinking="cut")


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The grade of one answer. `correct` is None without an answer; `extracted` is the part of the answer that was graded.

    `score`, from 0 to 1, is for measures other than right or wrong; `note` explains the grade in one line. `detail` is
    further plain data of the scorer, stored as JSON.
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
    """Answers that are stored as they arrive, so that a resumed study does not ask for them again."""

    @property
    def known(self) -> Mapping[str, ItemAnswer]:
        """The answers of an earlier attempt by key, without failed ones."""

    def add(self, key: str, answer: ItemAnswer) -> None:
        """Store an answer."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where the engine under test is reached. `base_url` ends in `/v1`; `headers` may hold an API key; `query` is in each URL.

    `tokenizer` is a folder, file or id of the model's tokenizer, if known. A scorer that sends its own requests stores
    answers in `memory`, and calls `watch` a few times a second with its progress; an exception of `watch` (the engine died)
    must end it.
    """

    base_url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Sequence[tuple[str, str]] = ()
    verify_tls: Trust = True
    names: Mapping[str, str] = field(default_factory=dict)
    """Body fields that the server knows by another name only (`Dialect.names`)."""
    tokenizer: str | None = None
    memory: AnswerStore | None = None
    watch: Callable[[str], None] | None = None


class Scorer:
    """Base class of scorers: makes items from a file and grades answers. The same file and seed give the same items.

    A scorer with a harness of its own sets `asks_itself` and implements `evaluate` instead of `items` and `grade`. One that
    grades the answers of the measured load sets `grades_load` and implements `grade_load`.
    """

    name: ClassVar[str]
    method: ClassVar[str]
    """How answers are graded, in a few words; only figures of one method are compared."""
    settings_type: ClassVar[type[QualitySettings]] = QualitySettings
    source: ClassVar[PackagedFile | Path | None] = None
    """The default questions: a file in a wheel of the package index, or a local file. Without them the user must set
    `quality.path`."""
    asks_itself: ClassVar[bool] = False
    grades_load: bool = False
    """Set it in `__init__` if it depends on the settings."""
    load_reference: ClassVar[str] = ""
    """For `grades_load`: the key of a request's reference that it needs (`Workload.reference_keys`)."""
    cuts_thinking: ClassVar[bool] = True
    """Whether answers are graded without their thinking (`ItemAnswer.to_grade`)."""

    def __init__(self, settings: QualitySettings | None = None) -> None:
        self.settings = settings if settings is not None else self.settings_type(name=self.name)

    def check(self) -> list[str]:
        """Return what prevents this scorer from running, one line each: a missing package, a setting. Changes nothing."""
        return []

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        """Return a sample of `count` items, or all if there are fewer. Raises ConfigError for an unusable file."""
        raise NotImplementedError

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """Grade one answer, which has no error."""
        raise NotImplementedError

    def judged(self, item: Item, answer: ItemAnswer) -> Judged:
        """Return an answer as it is graded, with its grade: none where there is no answer."""
        answer = answer.to_grade(cut=self.cuts_thinking)
        grade = self.grade(item, answer) if answer.error is None else Grade(correct=None, extracted=None)
        return Judged(item=item, answer=answer, grade=grade)

    def evaluate(self, endpoint: Endpoint, *, count: int | None, concurrency: int) -> Sequence[Judged]:
        """For `asks_itself`: send `count` items (null: all) of each task to the endpoint. Raises QualityError."""
        raise NotImplementedError

    def grade_load(self, requests: Sequence[Request], records: Sequence[Record]) -> Sequence[Judged]:
        """For `grades_load`: grade the answers of one point, without the warm-up; called after each point. Leave out requests
        that this scorer cannot grade; a failed request is `correct=None`."""
        raise NotImplementedError
