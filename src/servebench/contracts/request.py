"""What a workload produces: requests, and the tokenizer that it counts with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

from servebench.contracts.settings import WorkloadSettings


@dataclass(frozen=True)
class Message:
    """One turn of a chat. `extra` are further fields of it, sent unchanged, such as the calls of tools."""

    role: str
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class PriorAnswer:
    """A place in a prompt for the model's real answer to an earlier request.

    `of` is the id of that request, `mark` the placeholder in the prompt, `stand_in` the text to use where nothing answers
    (a preview).
    """

    of: str
    mark: str
    stand_in: str


def answer_mark(request_id: str) -> str:
    """Return the placeholder for the answer to a request. JSON encoding does not change it."""
    return f"<<answer to {request_id}>>"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, before an engine's dialect is applied.

    Exactly one of `messages` and `prompt` is set. `api` names its kind; null: `chat` with messages, else `completions`.
    `inputs` are further texts: those to embed with the prompt, or the documents to rank for it.
    `images` are data URLs that go into the first message of a user.
    `prompt_tokens` is the length of the prompt by the
    workload's count, without the chat template. `output_tokens` is the longest answer; with `exact_output` the engine must
    give exactly that many. `schema` is a JSON Schema for the answer. `reference` is what a scorer compares the answer with;
    it is never sent. `extra` are further body fields, sent unchanged. `arrival_s` is the arrival time in a trace, from its
    first request; `think_s` is how long a user of the session `session_id` waits after the previous answer. `job` is what
    the session works for, an agent with its sub-agents or a conversation, and `job_requests` how many requests that has in all.

    The request is sent after the previous one of its session and those named in `after` have ended. `answers` are the real
    answers that its prompt has placeholders for; if one of them fails, the request is never sent.
    """

    request_id: str
    api: str | None = None
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    inputs: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    output_tokens: int = 128
    exact_output: bool = False
    temperature: float | None = 0.0
    seed: int | None = None
    prompt_tokens: int | None = None
    session_id: str | None = None
    schema: Mapping[str, Any] | None = None
    reference: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    arrival_s: float | None = None
    think_s: float | None = None
    job: str | None = None
    job_requests: int | None = None
    after: tuple[str, ...] = ()
    answers: tuple[PriorAnswer, ...] = ()

    def filled(self, texts: Mapping[str, str]) -> Self:
        """Return the request with its answers filled in: those of `texts`, by request id, else the stand-ins."""
        if not self.answers:
            return self
        known = {answer.mark: texts.get(answer.of, answer.stand_in) for answer in self.answers}

        def put(text: str) -> str:
            for mark, answer in known.items():
                text = text.replace(mark, answer)
            return text

        return replace(
            self,
            messages=self.messages and tuple(replace(one, content=put(one.content)) for one in self.messages),
            prompt=self.prompt if self.prompt is None else put(self.prompt),
            answers=(),
        )


class Tokenizer(Protocol):
    """Counts and cuts text in the served model's tokens. `exact` is false for a stated approximation."""

    @property
    def name(self) -> str:
        """`engine`, the path of a tokenizer file, or `approximate (4 characters a token)`."""

    @property
    def exact(self) -> bool:
        """Whether counts are those of the served model."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, without special tokens."""

    def truncate(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` with at most `tokens` tokens."""


class Workload:
    """Base class of workloads, which make requests. The same settings and seed give the same bytes."""

    name: ClassVar[str]
    settings_type: ClassVar[type[WorkloadSettings]] = WorkloadSettings
    reference_keys: ClassVar[tuple[str, ...] | None] = None
    """Keys that `Request.reference` can have, for scorers that grade the load's answers; null if unknown."""
    draws_lengths: ClassVar[bool] = False
    """Whether the length of each answer is drawn from `output_tokens`, independently of everything else."""

    def __init__(self, settings: WorkloadSettings) -> None:
        """Store the settings; `check` and `requests` read the data."""
        self.settings = settings

    def check(self) -> list[str]:
        """Return what makes this workload impossible, such as a missing data file, one line each."""
        return []

    def notes(self) -> list[str]:
        """Return what a user should know of the data, one line each, such as rows that are left out. Raises ConfigError."""
        return []

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests. `stream` names an independent sequence: the streams of a workload of unique prompts share
        none. Raises ConfigError if the data has too few."""
        raise NotImplementedError
