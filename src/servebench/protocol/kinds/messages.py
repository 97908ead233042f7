"""The kind `messages`: Anthropic's Messages API.

Events as Anthropic documents them (platform.claude.com, streaming messages), and as vLLM 0.32 and llama.cpp send them. The
`input_tokens` of a usage leave out what came from the cache or went into it, which vLLM says at the end only.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from servebench.contracts.request import Message, Request
from servebench.protocol.answer import TextPlace
from servebench.protocol.errors import as_json
from servebench.protocol.json_values import count_of, load_object, object_at
from servebench.protocol.kinds.openai import PROBE
from servebench.protocol.kinds.typed import TypedKind, TypedScan, calls_of, objects_in

TEXTS = ("text", "thinking", "partial_json")
"""The fields of a block or a delta that hold generated text."""


class MessagesScan(TypedScan):
    """Reads the events of a message, or a whole one."""

    __slots__ = ()
    finish_reasons: ClassVar[Mapping[str, str]] = {
        **{"end_turn": "stop", "stop_sequence": "stop"},
        **{"max_tokens": "length", "tool_use": "tool_calls"},
    }

    def add_chunk(self, chunk: dict[str, Any], stamp_ns: int, read_index: int) -> None:
        """See AnswerScan.add_chunk."""
        kind = chunk.get("type")
        content = False
        if kind == "content_block_delta":
            content = self._block(object_at(chunk, "delta"), stamp_ns)
        elif kind == "content_block_start":
            content = self._block(object_at(chunk, "content_block"), stamp_ns)
        elif kind == "message_start":
            self._said(object_at(chunk, "message"))
            # the count at the beginning is not that of the answer
            self.usage_tokens = None
        elif kind == "message":
            for block in objects_in(chunk.get("content")):
                content |= self._block(block, stamp_ns)
            self._said(chunk)
        elif kind == "message_delta":
            self._said({**chunk, **object_at(chunk, "delta")})
        self.done = self.done or kind == "message_stop"
        if content:
            self.add_event(stamp_ns, read_index)
        self.fail_if_error(chunk)

    def text_place(self, chunk: dict[str, Any]) -> TextPlace | None:
        """See AnswerScan.text_place."""
        delta = chunk.get("delta")
        if chunk.get("type") != "content_block_delta" or chunk.get("error") or not isinstance(delta, dict):
            return None
        names = [name for name in TEXTS if delta.get(name)]
        if len(names) != 1 or not isinstance(delta[names[0]], str) or delta.get("input") or delta.get("name"):
            return None
        return TextPlace(delta, names[0], self.reasoning_parts if names[0] == "thinking" else self.text_parts)

    def _block(self, block: Mapping[str, Any], stamp_ns: int) -> bool:
        """Take a delta, or a block that begins or is whole; return whether it has text, or is a tool call with a name."""
        content = self.add_call(block.get("name")) and self.note_output(stamp_ns)
        for name in TEXTS:
            content |= self.take(
                block.get(name), self.reasoning_parts if name == "thinking" else self.text_parts, stamp_ns
            )
        if block.get("input"):
            content |= self.take(as_json(block["input"]), self.text_parts, stamp_ns)
        return content

    def _said(self, message: Mapping[str, Any]) -> None:
        """Take the stop reason, the usage and the other fields of a message, as far as it has them."""
        self.details.update({name: message[name] for name in message if name not in ("content", "delta", "type")})
        self.finish(message.get("stop_reason"))
        usage = object_at(message, "usage")
        read, written = (count_of(usage.get(f"cache_{how}_input_tokens")) for how in ("read", "creation"))
        prompt, output = count_of(usage.get("input_tokens")), count_of(usage.get("output_tokens"))
        if prompt is not None:
            self.prompt_tokens = count_of(prompt + (read or 0) + (written or 0))
        self.cached_tokens = self.cached_tokens if read is None else read
        self.usage_tokens = self.usage_tokens if output is None else output


class Messages(TypedKind):
    """Messages, and a system prompt beside them. An exact length or a seed cannot be asked for."""

    name = "messages"
    path = "/messages"
    title = "message"
    scan = MessagesScan
    probe = Request(api="messages", messages=(Message("user", "Say yes."),), **PROBE)
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
    exact_length = False
    answer_at = "content"

    def conversation(self, request: Request) -> dict[str, Any]:
        """See TypedKind.conversation."""
        rest = list(request.messages or ())
        system = []
        while rest and rest[0].role in ("system", "developer"):
            system.append(rest.pop(0).content)
        beside = {"system": "\n".join(system)} if system else {}
        turns = self.illustrated([_message(one) for one in rest], request)
        return {**beside, "messages": turns, "max_tokens": request.output_tokens}

    def image_parts(self, text: str, images: Sequence[str]) -> list[dict[str, Any]]:
        """See RequestKind.image_parts."""
        parted = (one.removeprefix("data:").split(";base64,") for one in images)
        sources = [{"type": "base64", "media_type": kind, "data": data} for kind, data in parted]
        return [*({"type": "image", "source": source} for source in sources), {"type": "text", "text": text}]

    def wishes(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        """See TypedKind.wishes."""
        schema, functions, choice = (chat.get(name) for name in ("json_schema", "functions", "choice"))
        form = {"type": "json_schema", "schema": object_at(schema).get("schema")}
        found: dict[str, Any] = {"output_config": {"format": form}} if schema else {}
        if functions:
            keys = {"name": "name", "description": "description", "parameters": "input_schema"}
            found["tools"] = [{keys[name]: value for name, value in one.items() if name in keys} for one in functions]
        if choice:
            named = {"type": "any" if choice == "required" else choice}
            found["tool_choice"] = named if isinstance(choice, str) else {"type": "tool", **choice}
        return found

    def calls_in(self, document: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
        """See RequestKind.calls_in."""
        for block in objects_in(document["content"]):
            if block.get("type") == "tool_use":
                yield block.get("name"), as_json(block.get("input") or {})


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
