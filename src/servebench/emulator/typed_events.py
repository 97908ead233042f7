"""The Responses and the Messages API of the emulated engines: answers in their events. Pure."""

import json
from typing import Any

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator.requests import ParsedRequest
from servebench.emulator.responses import PoolingWriter, ResponseWriter, usage_of
from servebench.emulator.scheduler import EmulatedRequest


class ResponsesWriter:
    """Write one answer as the events of OpenAI's Responses API, numbered as vLLM does."""

    def __init__(self, spec: EmulationSpec, parsed: ParsedRequest, answer_id: str, created: int) -> None:
        self._spec, self._parsed = spec, parsed
        self._number = -1
        self._base = {"id": answer_id, "object": "response", "created_at": created, "model": spec.model_name}
        self._place = {"item_id": f"msg_{answer_id}", "output_index": 0, "content_index": 0}

    def _event(self, name: str, **fields: Any) -> bytes:
        self._number += 1
        kind = f"response.{name}"
        body = json.dumps({"type": kind, "sequence_number": self._number, **fields})
        return f"event: {kind}\ndata: {body}\n\n".encode()

    def _item(self, status: str, *content: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self._place["item_id"],
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def opening(self) -> bytes:
        """Return the events before the first content."""
        begun = {**self._base, "status": "in_progress", "output": [], "usage": None}
        events = [self._event(name, response=begun) for name in ("created", "in_progress")]
        events.append(self._event("output_item.added", output_index=0, item=self._item("in_progress")))
        return b"".join((*events, self._event("content_part.added", **self._place, part=_text(""))))

    def content(self, content: str, *, last: bool) -> bytes:
        """Return an event with content."""
        return self._event("output_text.delta", **self._place, delta=content)

    def closing(self, request: EmulatedRequest, reported: int) -> bytes:
        """Return the events after the last content."""
        whole = self.whole(request, reported)
        (item,) = whole["output"]
        (part,) = item["content"]
        return (
            self._event("output_text.done", **self._place, text=part["text"])
            + self._event("content_part.done", **self._place, part=part)
            + self._event("output_item.done", output_index=0, item=item)
            + self._event("completed" if self._parsed.ends_itself else "incomplete", response=whole)
        )

    def whole(self, request: EmulatedRequest, reported: int) -> dict[str, Any]:
        """Return the answer to a request without streaming."""
        usage, ends = usage_of(self._spec, request, reported), self._parsed.ends_itself
        return {
            **self._base,
            "status": "completed" if ends else "incomplete",
            "incomplete_details": None if ends else {"reason": "max_output_tokens"},
            "output": [self._item("completed", _text("".join(request.pieces)))],
            "usage": {
                "input_tokens": request.prompt_tokens,
                "output_tokens": reported,
                "total_tokens": usage["total_tokens"],
                "input_tokens_details": usage.get("prompt_tokens_details", {}),
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }


class MessagesWriter:
    """Write one answer as the events of Anthropic's Messages API."""

    def __init__(self, spec: EmulationSpec, parsed: ParsedRequest, answer_id: str, created: int) -> None:
        self._spec, self._parsed = spec, parsed
        self._base = {"id": answer_id, "type": "message", "role": "assistant", "model": spec.model_name}

    def _event(self, kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()

    def opening(self) -> bytes:
        """Return the events before the first content."""
        usage = {"input_tokens": self._parsed.prompt_tokens, "output_tokens": 0}
        begun: dict[str, Any] = {**self._base, "content": [], "stop_reason": None, "usage": usage}
        block = {"type": "text", "text": ""}
        return self._event("message_start", message=begun) + self._event(
            "content_block_start", index=0, content_block=block
        )

    def content(self, content: str, *, last: bool) -> bytes:
        """Return an event with content."""
        return self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": content})

    def closing(self, request: EmulatedRequest, reported: int) -> bytes:
        """Return the events after the last content."""
        whole = self.whole(request, reported)
        delta = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
        ended = self._event("message_delta", delta=delta, usage=whole["usage"])
        return self._event("content_block_stop", index=0) + ended + self._event("message_stop")

    def whole(self, request: EmulatedRequest, reported: int) -> dict[str, Any]:
        """Return the answer to a request without streaming."""
        cached = request.cached or 0 if self._spec.emulation.cached_tokens else 0
        usage = {"input_tokens": request.prompt_tokens - cached, "output_tokens": reported}
        return {
            **self._base,
            "content": [{"type": "text", "text": "".join(request.pieces)}],
            "stop_reason": "end_turn" if self._parsed.ends_itself else "max_tokens",
            "stop_sequence": None,
            "usage": usage | ({"cache_read_input_tokens": cached} if self._spec.emulation.cached_tokens else {}),
        }


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


WRITERS: dict[str, type[ResponseWriter] | type[ResponsesWriter] | type[MessagesWriter]] = {
    **{"responses": ResponsesWriter, "messages": MessagesWriter},
    **{"embeddings": PoolingWriter, "rerank": PoolingWriter},
}
