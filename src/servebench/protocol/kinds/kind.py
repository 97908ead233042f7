"""A kind of request: everything that differs between the routes of an API that servebench can measure."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Message, Request
from servebench.protocol.answer import AnswerScan
from servebench.protocol.json_values import decode_text, join_text, load_object
from servebench.util.safe_text import in_one_line

SHOWN = 60


class WholeAnswer(NamedTuple):
    """What an answer says that is not streamed. `tokens` and `logprobs` are null unless every token has a log-probability;
    `calls` are the `name` and `arguments` of each tool call, null without any."""

    text: str
    reasoning: str = ""
    calls: Sequence[Mapping[str, str]] | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens: Sequence[str] | None = None
    logprobs: Sequence[float] | None = None


class RequestKind(ABC):
    """How a kind of request is sent, what its answers hold, which columns it has, and how its answers are checked. The kinds are
    in `protocol.kinds.table`. An instance has no state."""

    name: ClassVar[str]
    """The value of `workload.api` and `quality.api`."""
    path: ClassVar[str]
    """Below the base URL, unless the engine's dialect has another."""
    title: ClassVar[str]
    """What an answer is called in errors."""
    scan: ClassVar[type[AnswerScan]]
    """Reads the events of an answer: which carry generated content, reasoning, tool calls, the finish reason and the usage."""
    probe: ClassVar[Request]
    """The request that a server answers once it is ready. It must generate at least one content event."""
    probe_instead: ClassVar[tuple[str, ...]] = ()
    """Kinds that show that a server is ready where it has no route for this one."""
    other_names: ClassVar[Mapping[str, str]] = {}
    """What some servers call fields of its body, by their usual names; their refusal of a usual body says it."""
    headers: ClassVar[Mapping[str, str]] = {}
    """Headers of each request, unless the user sets them."""
    exact_length: ClassVar[bool] = True
    """Whether an answer of exactly a length can be asked for, if the engine's dialect has a way."""
    takes_messages: ClassVar[bool] = False
    """Whether a conversation is sent as messages, to which the server adds its template; otherwise as one text."""
    lacks: ClassVar[tuple[str, ...]] = ()
    """Columns of a point that have no meaning for this kind, or what their names begin with (`itl_ms`)."""
    answers_text: ClassVar[bool] = True
    """Whether scorers can grade its answers."""
    correctness: ClassVar[str | None] = None
    """The scorer that shows whether two engines answer alike; null if there is none."""
    logprob_fields: ClassVar[Mapping[str, Any]] = {}
    """Body fields that ask for the log-probabilities of an answer; empty if it has none."""

    def request(self, text: str, request_id: str, **more: Any) -> Request:
        """Return a request with this prompt. `more` are further fields of the request."""
        if self.takes_messages:
            return Request(request_id=request_id, api=self.name, messages=(Message("user", text),), **more)
        return Request(request_id=request_id, api=self.name, prompt=text, **more)

    @abstractmethod
    def body(self, request: Request, model: str, dialect: Dialect, *, streamed: bool = True) -> dict[str, Any]:
        """Return the JSON body of a request."""

    def image_parts(self, text: str, images: Sequence[str]) -> list[dict[str, Any]]:
        """Return the content of a message with images, which are data URLs."""
        shown = [{"type": "image_url", "image_url": {"url": one}} for one in images]
        return [*shown, {"type": "text", "text": text}]

    def illustrated(self, turns: list[dict[str, Any]], request: Request) -> list[dict[str, Any]]:
        """Return the messages of a body with the request's images in the first one of a user."""
        place = next((at for at, turn in enumerate(turns) if turn.get("role") == "user"), None)
        if request.images and place is not None:
            turns[place] = {**turns[place], "content": self.image_parts(turns[place]["content"], request.images)}
        return turns

    def path_of(self, dialect: Dialect) -> str:
        """Return the path of its requests below the base URL."""
        return dialect.paths.get(self.name, self.path)

    def read_whole(self, data: bytes) -> WholeAnswer:
        """Return what an answer says that is not streamed. Raises ValueError with what is wrong."""
        document = load_object(data, self.scan.list_name)
        if document is None:
            beginning = in_one_line(decode_text(data[: 4 * SHOWN]), SHOWN)
            raise ValueError(f"it is not a JSON object and begins with {beginning!r}")
        if problem := self.whole_problem(document):
            raise ValueError(problem)
        scan = self.scan()
        scan.add_chunk(document, 0, 0)
        if scan.error is not None:
            raise ValueError(scan.error)
        tokens, logprobs = self.logprobs_of(document) or (None, None)
        return WholeAnswer(
            text=self.whole_text(document, scan),
            reasoning=scan.reasoning,
            calls=[
                {"name": join_text([name]), "arguments": join_text([arguments])}
                for name, arguments in self.calls_in(document)
                if isinstance(name, str) and isinstance(arguments, str)
            ]
            or None,
            finish_reason=scan.finish_reason,
            prompt_tokens=scan.prompt_tokens,
            output_tokens=scan.usage_tokens,
            tokens=tokens,
            logprobs=logprobs,
        )

    def whole_text(self, document: Mapping[str, Any], scan: AnswerScan) -> str:
        """Return what scorers read of a whole answer."""
        return scan.text

    def calls_in(self, document: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
        """Yield the name and the arguments (JSON as text) of each tool call of a whole answer, as the server sent them."""
        yield from ()

    def whole_problem(self, document: Mapping[str, Any]) -> str | None:
        """Return what is wrong if this is no whole answer of this kind."""
        return None

    def logprobs_of(self, document: Mapping[str, Any]) -> tuple[list[str], list[float]] | None:
        """Return the tokens of a whole answer and their log-probabilities; None unless every token has one."""
        return None
