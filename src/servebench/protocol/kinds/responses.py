"""The kind `responses`: OpenAI's Responses API.

Events as OpenAI documents them, and as vLLM 0.32 and llama.cpp send them. Both end an answer that was cut with
`response.completed`, too: vLLM says so in `incomplete_details`, llama.cpp nowhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from servebench.contracts.request import Message, Request
from servebench.protocol.json_values import count_of, object_at
from servebench.protocol.kinds.openai import Chat
from servebench.protocol.kinds.typed import TypedKind, TypedScan, calls_of, objects_in

TEXT_DELTAS = frozenset(
    f"response.{name}.delta"
    for name in ("output_text", "refusal", "function_call_arguments", "custom_tool_call_input", "mcp_call_arguments")
)
REASONING_DELTAS = frozenset(f"response.{name}.delta" for name in ("reasoning_text", "reasoning_summary_text"))
ENDS = ("response.completed", "response.incomplete", "response.failed")


class ResponsesScan(TypedScan):
    """Reads the events of a response, or a whole one."""

    __slots__ = ()
    finish_reasons: ClassVar[Mapping[str, str]] = {"max_output_tokens": "length"}

    def add_chunk(self, chunk: dict[str, Any], stamp_ns: int, read_index: int) -> None:
        """See AnswerScan.add_chunk."""
        kind = str(chunk.get("type", ""))
        content = False
        if kind in TEXT_DELTAS:
            content = self.take(chunk.get("delta"), self.text_parts, stamp_ns)
        elif kind in REASONING_DELTAS:
            content = self.take(chunk.get("delta"), self.reasoning_parts, stamp_ns)
        elif kind == "response.output_item.added":
            content = self._call(object_at(chunk, "item"), stamp_ns)
        elif kind in ENDS or chunk.get("object") == "response":
            response = chunk if not kind else object_at(chunk, "response")
            # an answer that is not streamed has all its content here
            content = not self.event_ns and self._output(response, stamp_ns)
            self._end(response, chunk)
        elif kind == "response.created":
            self.details.update(object_at(chunk, "response"))
        if content:
            self.add_event(stamp_ns, read_index)
        self.fail_if_error(chunk)

    def _output(self, response: Mapping[str, Any], stamp_ns: int) -> bool:
        """Take the output of a whole answer; return whether there is any."""
        found = False
        for item in objects_in(response.get("output")):
            parts = self.reasoning_parts if item.get("type") == "reasoning" else self.text_parts
            for part in objects_in(item.get("content")):
                found |= self.take(part.get("text") or part.get("refusal"), parts, stamp_ns)
            found |= self._call(item, stamp_ns)
        return found

    def _call(self, item: Mapping[str, Any], stamp_ns: int) -> bool:
        """Take a tool call; return whether it has a name or arguments."""
        text = self.take(item.get("arguments"), self.text_parts, stamp_ns)
        return bool((self.add_call(item.get("name")) and self.note_output(stamp_ns)) or text)

    def _end(self, response: Mapping[str, Any], chunk: Mapping[str, Any]) -> None:
        self.done = True
        self.details.update(
            {name: value for name, value in {**chunk, **response}.items() if name not in ("output", "response")}
        )
        self.fail_if_error(response)
        if response.get("status") == "completed":
            called = any(item.get("type") == "function_call" for item in objects_in(response.get("output")))
            self.finish_reason = "tool_calls" if called else "stop"
        self.finish(object_at(response, "incomplete_details").get("reason"))
        usage = object_at(response, "usage")
        self.prompt_tokens, self.usage_tokens = (count_of(usage.get(f"{name}_tokens")) for name in ("input", "output"))
        self.cached_tokens = count_of(object_at(usage, "input_tokens_details").get("cached_tokens"))
        self.reasoning_tokens = count_of(object_at(usage, "output_tokens_details").get("reasoning_tokens"))


class Responses(TypedKind):
    """Items in, items out. Nothing is stored on the server."""

    name = "responses"
    path = "/responses"
    title = "response"
    scan = ResponsesScan
    # OpenAI takes no shorter limit, and its models that think take no temperature
    probe = replace(Chat.probe, api="responses", output_tokens=16, temperature=None)
    answer_at = "output"

    def conversation(self, request: Request) -> dict[str, Any]:
        """See TypedKind.conversation."""
        items = self.illustrated([item for message in request.messages or () for item in _items(message)], request)
        return {"input": items, "max_output_tokens": request.output_tokens, "store": False}

    def image_parts(self, text: str, images: Sequence[str]) -> list[dict[str, Any]]:
        """See RequestKind.image_parts."""
        shown = [{"type": "input_image", "image_url": one, "detail": "auto"} for one in images]
        return [*shown, {"type": "input_text", "text": text}]

    def wishes(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """See TypedKind.wishes."""
        schema, functions, choice = (chat.get(name) for name in ("json_schema", "functions", "choice"))
        found: dict[str, Any] = {"text": {"format": {"type": "json_schema", **schema}}} if schema else {}
        if functions:
            found["tools"] = [{"type": "function", **one} for one in functions]
        if choice:
            found["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", **choice}
        return found

    def calls_in(self, document: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
        """See RequestKind.calls_in."""
        for item in objects_in(document["output"]):
            if item.get("type") == "function_call":
                yield item.get("name"), item.get("arguments", "")


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
    return [said, *calls] if message.content or not calls else calls
