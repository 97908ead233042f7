"""What the kinds share whose events have a type (Responses, Messages): reading their text, and translating a chat in OpenAI's
shape, in which workloads make it, to theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Message, Request
from servebench.protocol.answer import AnswerScan
from servebench.protocol.json_values import object_at
from servebench.protocol.kinds.kind import RequestKind


class TypedScan(AnswerScan):
    """Reads chunks with a `type`."""

    __slots__ = ()

    def take(self, text: object, parts: list[str], stamp_ns: int) -> bool:
        """Add a text to `parts`, the text or the reasoning of this scan; return whether there is one."""
        if text.__class__ is not str or not text:
            return False
        parts.append(str(text))
        if parts is self.text_parts:
            self.note_output(stamp_ns)
        return True

    def note_output(self, stamp_ns: int) -> None:
        """Note that there is content that is not reasoning."""
        if self.first_output_ns is None:
            self.first_output_ns = stamp_ns


class TypedKind(RequestKind):
    """A kind whose requests have messages and whose events have a type."""

    takes_messages = True
    correctness = "parity"


def type_of(chunk: Mapping[str, Any]) -> str | None:
    """Return the type of a chunk; None without one."""
    found = chunk.get("type")
    return found if isinstance(found, str) else None


def calls_of(message: Message) -> list[tuple[str, str, str]]:
    """Return the tool calls of a message: id, name and arguments (a JSON text)."""
    calls = message.extra.get("tool_calls")
    found = [(one.get("id"), object_at(one, "function")) for one in calls or () if isinstance(one, Mapping)]
    return [(str(key or ""), str(call.get("name", "")), str(call.get("arguments", ""))) for key, call in found]


def functions_of(tools: object) -> list[dict[str, Any]] | None:
    """Return the functions of `tools` in OpenAI's chat shape; None if they are in another."""
    if not isinstance(tools, list) or not all(isinstance(object_at(one).get("function"), Mapping) for one in tools):
        return None
    return [dict(one["function"]) for one in tools]


def schema_of(request: Request, dialect: Dialect) -> Mapping[str, Any] | None:
    """Return the JSON Schema that an answer must fit, as `json_schema` of a `response_format` has it; None without one."""
    given = object_at(request.extra, "response_format", "json_schema")
    if given or request.schema is None or not dialect.json_schema:
        return given or None
    return {"name": "answer", "schema": dict(request.schema), "strict": True}
