"""The kind `messages`: Anthropic's Messages API.

Events as Anthropic documents them (platform.claude.com, streaming messages), and as vLLM 0.32, SGLang and llama.cpp send them.
`input_tokens` of a usage leaves out what came from the cache or went into it; vLLM says how much that was at the end only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Message, Request
from servebench.protocol.answer import TextPlace
from servebench.protocol.errors import error_message
from servebench.protocol.json_values import count_of, join_text, load_object, object_at
from servebench.protocol.kinds.choices import REASON_CHARS_MAX
from servebench.protocol.kinds.openai import PROBE
from servebench.protocol.kinds.typed import TypedKind, TypedScan, calls_of, functions_of, schema_of

TEXTS = ("text", "thinking", "partial_json")
"""The fields of a block or a delta that hold generated text."""

FINISH_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
"""Stop reasons by the word that chat completions use for them."""

TOOL_CHOICES = {"auto": {"type": "auto"}, "required": {"type": "any"}, "none": {"type": "none"}}


class MessagesScan(TypedScan):
    """Reads the events of a message, or a whole one."""

    __slots__ = ()

    def add_chunk(self, chunk: dict[str, Any], stamp_ns: int, read_index: int) -> None:
        """See AnswerScan.add_chunk."""
        kind = chunk.get("type")
        content = False
        if kind == "content_block_delta":
            content = self._text(object_at(chunk, "delta"), stamp_ns)
        elif kind == "content_block_start":
            content = self._block(object_at(chunk, "content_block"), stamp_ns)
        elif kind == "message_start":
            self._said(object_at(chunk, "message"))
            # the count at the beginning is not that of the answer
            self.usage_tokens = None
        elif kind == "message":
            blocks = chunk.get("content")
            for block in blocks if isinstance(blocks, list) else ():
                content |= self._block(object_at(block), stamp_ns)
            self._said(chunk)
        elif kind == "message_delta":
            self._said({**chunk, **object_at(chunk, "delta")})
        elif kind == "message_stop":
            self.done = True
        if content:
            self.add_event(stamp_ns, read_index)
        if kind == "error" or chunk.get("error"):
            self.fail(error_message(chunk) or "an error without a message")

    def text_place(self, chunk: dict[str, Any]) -> TextPlace | None:
        """See AnswerScan.text_place."""
        delta = chunk.get("delta")
        if chunk.get("type") != "content_block_delta" or chunk.get("error") or delta.__class__ is not dict:
            return None
        assert isinstance(delta, dict)
        names = [name for name in TEXTS if delta.get(name)]
        if len(names) != 1 or delta[names[0]].__class__ is not str:
            return None
        return TextPlace(delta, names[0], self.reasoning_parts if names[0] == "thinking" else self.text_parts)

    def _text(self, holder: Mapping[str, Any], stamp_ns: int) -> bool:
        output = self.take(holder.get("text"), self.text_parts, stamp_ns)
        output |= self.take(holder.get("partial_json"), self.text_parts, stamp_ns)
        return self.take(holder.get("thinking"), self.reasoning_parts, stamp_ns) or output

    def _block(self, block: Mapping[str, Any], stamp_ns: int) -> bool:
        """Take a block that begins, or is whole; return whether it has text, or is a tool call with a name."""
        content = self._text(block, stamp_ns)
        if block.get("input"):
            content |= self.take(_as_json(block["input"]), self.text_parts, stamp_ns)
        if block.get("type") == "tool_use" and block.get("name"):
            self.note_output(stamp_ns)
            content = True
        return content

    def _said(self, message: Mapping[str, Any]) -> None:
        """Take the stop reason, the usage and the other fields of a message, as far as it has them."""
        self.details.update({name: message[name] for name in message if name not in ("content", "delta", "type")})
        reason = message.get("stop_reason")
        if isinstance(reason, str) and reason:
            self.finish_reason = join_text([FINISH_REASONS.get(reason, reason)[:REASON_CHARS_MAX]])
        usage = object_at(message, "usage")
        read, written = (count_of(usage.get(f"cache_{how}_input_tokens")) for how in ("read", "creation"))
        prompt, output = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
        if prompt is not None:
            self.prompt_tokens = count_of(prompt + (read or 0) + (written or 0))
        if read is not None:
            self.cached_tokens = read
        if output is not None:
            self.usage_tokens = output


def _as_json(value: object) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return ""


class Messages(TypedKind):
    """Messages, and a system prompt beside them. An exact length or a seed cannot be asked for."""

    name = "messages"
    path = "/messages"
    title = "message"
    scan = MessagesScan
    probe = Request(api="messages", messages=(Message("user", "Say yes."),), **PROBE)
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
    exact_length = False

    def body(self, request: Request, model: str, dialect: Dialect, *, streamed: bool = True) -> dict[str, Any]:
        """See RequestKind.body."""
        messages = list(request.messages or ())
        system = []
        while messages and messages[0].role in ("system", "developer"):
            system.append(messages.pop(0).content)
        body: dict[str, Any] = {
            "model": model,
            "messages": [_message(one) for one in messages],
            "max_tokens": request.output_tokens,
            "temperature": request.temperature,
        }
        if system:
            body["system"] = "\n".join(system)
        if streamed:
            body["stream"] = True
        extra = dict(request.extra)
        extra.pop("response_format", None)
        if schema := schema_of(request, dialect):
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema.get("schema")}}
        if functions := functions_of(extra.get("tools")):
            extra["tools"] = [
                {
                    "name": one.get("name"),
                    "description": one.get("description", ""),
                    "input_schema": one.get("parameters", {}),
                }
                for one in functions
            ]
        choice = extra.get("tool_choice")
        if isinstance(choice, str) and choice in TOOL_CHOICES:
            extra["tool_choice"] = TOOL_CHOICES[choice]
        elif chosen := object_at(extra, "tool_choice", "function"):
            extra["tool_choice"] = {"type": "tool", **chosen}
        return {**body, **extra}

    def whole_problem(self, document: Mapping[str, Any]) -> str | None:
        """See RequestKind.whole_problem."""
        if document.get("error"):
            return error_message(document)
        return None if isinstance(document.get("content"), list) else "it has no content"


def _message(message: Message) -> dict[str, Any]:
    """Return a message of a chat in Anthropic's shape: the calls of tools and their results are blocks."""
    if message.role == "tool":
        block = {
            "type": "tool_result",
            "tool_use_id": message.extra.get("tool_call_id", ""),
            "content": message.content,
        }
        return {"role": "user", "content": [block]}
    calls = [
        {"type": "tool_use", "id": key, "name": name, "input": load_object(arguments.encode()) or {}}
        for key, name, arguments in calls_of(message)
    ]
    if not calls:
        return {"role": message.role, "content": message.content}
    text = [{"type": "text", "text": message.content}] if message.content else []
    return {"role": message.role, "content": [*text, *calls]}
