"""What a workload yields, and what counts tokens for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from servebench.contracts.settings import WorkloadSettings


@dataclass(frozen=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True)
class PriorAnswer:
    """Where a prompt has the model's real answer to an earlier request, which is not known before that has ended.

    `of` is that request's id, `mark` the text that stands in the prompt in the answer's place, `stand_in` what is taken
    for it where nothing answers (a preview).
    """

    of: str
    mark: str
    stand_in: str


def answer_mark(request_id: str) -> str:
    """The mark of the answer to a request: it passes JSON unchanged."""
    return f"<<answer to {request_id}>>"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One thing to ask, before any engine's dialect is applied.

    Exactly one of `messages` (chat) and `prompt` (completions) is set. `prompt_tokens` is what the workload believes the
    prompt to be long (chat template left out), `output_tokens` the most the answer may be long; with `exact_output` the
    engine is asked to give exactly that many. `schema` is a JSON Schema for the answer. `reference` is what a scorer
    compares the answer with and is never sent. `extra` are further body fields, sent as they are. `arrival_s` is when a
    trace has the request arrive, from its first one; `think_s` how long a user of a session (`session_id`) waits after
    the answer before: both are for a load that keeps to them. `after` are ids of requests before it in the same sequence
    that must have ended before this one is sent, beside the one before it of its session. `answers` are the real answers
    that its prompt has marks for; it is sent when they are there, and never when one of them failed.
    """

    request_id: str
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    output_tokens: int = 128
    exact_output: bool = False
    temperature: float = 0.0
    seed: int | None = None
    prompt_tokens: int | None = None
    session_id: str | None = None
    schema: Mapping[str, Any] | None = None
    reference: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    arrival_s: float | None = None
    think_s: float | None = None
    after: tuple[str, ...] = ()
    answers: tuple[PriorAnswer, ...] = ()

    def filled(self, texts: Mapping[str, str]) -> Request:
        """The request with the answers in their places: those of `texts` (by the id of what they answer), else the
        stand-ins."""
        if not self.answers:
            return self
        known = {answer.mark: texts.get(answer.of, answer.stand_in) for answer in self.answers}

        def put(text: str) -> str:
            for mark, answer in known.items():
                text = text.replace(mark, answer)
            return text

        return replace(
            self,
            messages=self.messages and tuple(Message(one.role, put(one.content)) for one in self.messages),
            prompt=self.prompt if self.prompt is None else put(self.prompt),
            answers=(),
        )


class Tokenizer(Protocol):
    """Counts and cuts text in the served model's tokens. `exact` is false for a stated approximation."""

    @property
    def name(self) -> str:
        """Who counts: `engine`, a tokenizer file's path, or `approximate (4 characters a token)`."""
        ...

    @property
    def exact(self) -> bool:
        """Whether counts are those of the served model."""
        ...

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without special tokens."""
        ...

    def truncate(self, text: str, tokens: int) -> str:
        """The longest prefix of `text` that is at most `tokens` long."""
        ...


class Workload:
    """Base of every workload: built with its settings, asked for requests. Same settings and seed, same bytes."""

    name: ClassVar[str]
    settings_type: ClassVar[type[WorkloadSettings]] = WorkloadSettings
    reference_keys: ClassVar[tuple[str, ...] | None] = None
    """What `Request.reference` can have, for scorers that grade the load's answers; null when that is not known."""

    def __init__(self, settings: WorkloadSettings) -> None:
        """Keep the settings; read no data yet. `check` and `requests` do."""
        self.settings = settings

    def check(self) -> list[str]:
        """What makes this workload impossible (a data file that is not there), one line each."""
        return []

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """`count` requests. `stream` names an independent sequence (`warmup-4-0`, `point-4-0`): two streams share no
        request of a workload that promises unique prompts. Raises ConfigError when the data cannot give them."""
        raise NotImplementedError
