"""The kind `responses`: OpenAI's Responses API.

Events as OpenAI documents them (`response.*`), and as vLLM 0.32, SGLang and llama.cpp send them. vLLM and llama.cpp end an answer
that was cut with `response.completed`, too: vLLM says so in `incomplete_details`, llama.cpp nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Message, Request
from servebench.protocol.answer import TextPlace
from servebench.protocol.errors import error_message
from servebench.protocol.json_values import count_of, join_text, object_at
from servebench.protocol.kinds.choices import REASON_CHARS_MAX
from servebench.protocol.kinds.openai import PROBE, logprob_pairs
from servebench.protocol.kinds.typed import TypedKind, TypedScan, calls_of, functions_of, schema_of, type_of

TEXT_DELTAS = frozenset(
    f"response.{name}.delta"
    for name in ("output_text", "refusal", "function_call_arguments", "custom_tool_call_input", "mcp_call_arguments")
)
REASONING_DELTAS = frozenset(f"response.{name}.delta" for name in ("reasoning_text", "reasoning_summary_text"))
ENDS = ("response.completed", "response.incomplete", "response.failed")
FINISH_REASONS = {"max_output_tokens": "length"}
"""Reasons of `incomplete_details` by the word that chat completions use for them."""


class ResponsesScan(TypedScan):
    """Reads the events of a response, or a whole one."""

    __slots__ = ()

    def add_chunk(self, chunk: dict[str, Any], stamp_ns: int, read_index: int) -> None:
        """See AnswerScan.add_chunk."""
        kind = type_of(chunk)
        content = False
        if kind in TEXT_DELTAS:
            content = self.take(chunk.get("delta"), self.text_parts, stamp_ns)
        elif kind in REASONING_DELTAS:
            content = self.take(chunk.get("delta"), self.reasoning_parts, stamp_ns)
        elif kind == "response.output_item.added":
            content = self._call(object_at(chunk, "item"), stamp_ns)
        elif kind in ENDS or chunk.get("object") == "response":
            response = chunk if kind is None else object_at(chunk, "response")
            # an answer that is not streamed has all its content here
            content = not self.event_ns and self._output(response.get("output"), stamp_ns)
            self._end(response, chunk)
        elif kind == "response.created":
            self.details.update(object_at(chunk, "response"))
        if content:
            self.add_event(stamp_ns, read_index)
        if kind == "error" or chunk.get("error"):
            self.fail(error_message(chunk) or "an error without a message")

    def text_place(self, chunk: dict[str, Any]) -> TextPlace | None:
        """See AnswerScan.text_place."""
        kind, text = type_of(chunk), chunk.get("delta")
        if (
            (kind not in TEXT_DELTAS and kind not in REASONING_DELTAS)
            or text.__class__ is not str
            or chunk.get("error")
        ):
            return None
        return (
            TextPlace(chunk, "delta", self.text_parts if kind in TEXT_DELTAS else self.reasoning_parts)
            if text
            else None
        )

    def _output(self, items: object, stamp_ns: int) -> bool:
        """Take the output of a whole answer; return whether there is any."""
        found = False
        for item in items if isinstance(items, list) else ():
            thought = object_at(item).get("type") == "reasoning"
            parts = object_at(item).get("content")
            for part in parts if isinstance(parts, list) else ():
                text = object_at(part).get("text") or object_at(part).get("refusal")
                found |= self.take(text, self.reasoning_parts if thought else self.text_parts, stamp_ns)
            found |= self._call(object_at(item), stamp_ns)
        return found

    def _call(self, item: Mapping[str, Any], stamp_ns: int) -> bool:
        """Take a tool call; return whether it has a name or arguments."""
        text = self.take(item.get("arguments"), self.text_parts, stamp_ns)
        named = str(item.get("type")).endswith("_call") and bool(item.get("name"))
        if named:
            self.note_output(stamp_ns)
        return text or named

    def _end(self, response: Mapping[str, Any], chunk: Mapping[str, Any]) -> None:
        self.done = True
        self.details.update(response)
        output = self.details.pop("output", None)
        if "timings" in chunk:
            self.details["timings"] = chunk["timings"]
        if response.get("error"):
            self.fail(error_message(response) or "an error without a message")
        reason = object_at(response, "incomplete_details").get("reason")
        called = any(
            object_at(item).get("type") == "function_call" for item in (output if isinstance(output, list) else ())
        )
        if isinstance(reason, str):
            self.finish_reason = join_text([FINISH_REASONS.get(reason, reason)[:REASON_CHARS_MAX]])
        elif response.get("status") == "completed":
            self.finish_reason = "tool_calls" if called else "stop"
        usage = object_at(response, "usage")
        self.prompt_tokens = count_of(usage.get("input_tokens"))
        self.usage_tokens = count_of(usage.get("output_tokens"))
        self.cached_tokens = count_of(object_at(usage, "input_tokens_details").get("cached_tokens"))
        self.reasoning_tokens = count_of(object_at(usage, "output_tokens_details").get("reasoning_tokens"))


class Responses(TypedKind):
    """Items in, items out. Nothing is stored on the server."""

    name = "responses"
    path = "/responses"
    title = "response"
    scan = ResponsesScan
    probe = Request(api="responses", messages=(Message("user", "Say yes."),), **PROBE)
    logprob_fields: ClassVar[Mapping[str, Any]] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}

    def body(self, request: Request, model: str, dialect: Dialect, *, streamed: bool = True) -> dict[str, Any]:
        """See RequestKind.body."""
        body: dict[str, Any] = {
            "model": model,
            "input": [item for message in request.messages or () for item in _items(message)],
            "max_output_tokens": request.output_tokens,
            "temperature": request.temperature,
            "store": False,
        }
        if streamed:
            body["stream"] = True
        if request.seed is not None and dialect.takes_seed:
            body["seed"] = request.seed
        if request.exact_output:
            body.update(dialect.exact_output)
        extra = dict(request.extra)
        extra.pop("response_format", None)
        if schema := schema_of(request, dialect):
            body["text"] = {"format": {"type": "json_schema", **schema}}
        if functions := functions_of(extra.get("tools")):
            extra["tools"] = [{"type": "function", **function} for function in functions]
        if chosen := object_at(extra, "tool_choice", "function"):
            extra["tool_choice"] = {"type": "function", **chosen}
        return {**body, **extra}

    def whole_problem(self, document: Mapping[str, Any]) -> str | None:
        """See RequestKind.whole_problem."""
        if document.get("error"):
            return error_message(document)
        return None if isinstance(document.get("output"), list) else "it has no output"

    def logprobs_of(self, document: Mapping[str, Any]) -> tuple[list[str], list[float]] | None:
        """See RequestKind.logprobs_of."""
        parts = [part for item in document["output"] for part in object_at(item).get("content") or ()]
        told = [one for part in parts for one in object_at(part).get("logprobs") or ()]
        return logprob_pairs([(one.get("token"), one.get("logprob")) for one in map(object_at, told)])


def _items(message: Message) -> list[dict[str, Any]]:
    """Return a message of a chat as items. llama.cpp needs the `type` of an assistant's message, vLLM a text that is no list."""
    if message.role == "tool":
        key = message.extra.get("tool_call_id", "")
        return [{"type": "function_call_output", "call_id": key, "output": message.content}]
    calls = [
        {"type": "function_call", "call_id": key, "name": name, "arguments": arguments}
        for key, name, arguments in calls_of(message)
    ]
    said = {"type": "message", "role": message.role, "content": message.content}
    return [said, *calls] if message.content or not calls else list(calls)
