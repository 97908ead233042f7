"""What the kinds share whose events have a type (Responses, Messages). Workloads make chats in OpenAI's shape, with the calls of
tools in the `extra` of their messages; these kinds translate them."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Message, Request
from servebench.protocol.answer import AnswerScan
from servebench.protocol.errors import error_message
from servebench.protocol.json_values import join_text, object_at
from servebench.protocol.kinds.kind import RequestKind
from servebench.protocol.kinds.openai import REASON_CHARS_MAX


class TypedScan(AnswerScan):
    """Reads chunks with a `type`."""

    __slots__ = ()
    finish_reasons: ClassVar[Mapping[str, str]] = {}
    """The API's reasons to end by the words of chat completions for them."""

    def take(self, text: object, parts: list[str], stamp_ns: int) -> bool:
        """Add a text to `parts`, the text or the reasoning of this scan; return whether there is one."""
        if not isinstance(text, str) or not text:
            return False
        parts.append(text)
        return parts is not self.text_parts or self.note_output(stamp_ns)

    def note_output(self, stamp_ns: int) -> bool:
        """Note that there is content that is not reasoning, and return true."""
        if self.first_output_ns is None:
            self.first_output_ns = stamp_ns
        return True

    def finish(self, reason: object) -> None:
        """Keep why the answer ended, if it says so."""
        if isinstance(reason, str) and reason:
            self.finish_reason = join_text([self.finish_reasons.get(reason, reason)[:REASON_CHARS_MAX]])

    def fail_if_error(self, chunk: Mapping[str, Any]) -> None:
        """Keep the error of a chunk that is one, or has one."""
        if chunk.get("type") == "error" or chunk.get("error"):
            self.fail(error_message(chunk) or "an error without a message")


class TypedKind(RequestKind):
    """A kind whose requests have messages and whose events have a type."""

    takes_messages = True
    correctness = "parity"
    answer_at: ClassVar[str]
    """The list of a whole answer with what was generated."""

    @abstractmethod
    def conversation(self, request: Request) -> dict[str, Any]:
        """Return the fields with the conversation, and the longest answer to it."""

    @abstractmethod
    def wishes(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields for what a chat asks for: `json_schema`, `functions`, and a `choice` (a word, or the name of one)."""

    def body(self, request: Request, model: str, dialect: Dialect, *, streamed: bool = True) -> dict[str, Any]:
        """See RequestKind.body."""
        body = {"model": model, **self.conversation(request)}
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if streamed:
            body["stream"] = True
        if self.exact_length and request.seed is not None and dialect.takes_seed:
            body["seed"] = request.seed
        if self.exact_length and request.exact_output:
            body.update(dialect.exact_output)
        extra = dict(request.extra)
        schema = object_at(extra.pop("response_format", None), "json_schema")
        if request.schema is not None and dialect.json_schema:
            schema = schema or {"name": "answer", "schema": dict(request.schema), "strict": True}
        functions = [object_at(one, "function") for one in objects_in(extra.get("tools"))]
        chat: dict[str, Any] = {"json_schema": schema}
        # others are in the shape of this API already
        if all(functions):
            extra.pop("tools", None)
            chosen = extra.pop("tool_choice", None)
            chat |= {"functions": functions, "choice": object_at(chosen, "function") or chosen}
        return {**body, **self.wishes(chat), **extra}

    def whole_problem(self, document: Mapping[str, Any]) -> str | None:
        """See RequestKind.whole_problem."""
        if document.get("error"):
            return error_message(document)
        return None if isinstance(document.get(self.answer_at), list) else f"it has no {self.answer_at}"


def objects_in(value: object) -> list[Mapping[str, Any]]:
    """Return the objects of a list; none of anything else."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def calls_of(message: Message) -> list[tuple[str, str, str]]:
    """Return the tool calls of a message: id, name and arguments (a JSON text)."""
    found = [(one.get("id"), object_at(one, "function")) for one in objects_in(message.extra.get("tool_calls"))]
    return [(str(key or ""), str(call.get("name", "")), str(call.get("arguments", ""))) for key, call in found]
