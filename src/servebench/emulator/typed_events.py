"""The emulated engines' answers that are no chat and no completion: the events of the Responses and the Messages API, vectors and
scores. Pure."""

import json
from typing import Any

from servebench.emulator.responses import ResponseWriter, usage_of
from servebench.emulator.scheduler import EmulatedRequest


def _events(*events: dict[str, Any]) -> bytes:
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events).encode()


class ResponsesWriter(ResponseWriter):
    """Writes the events of OpenAI's Responses API, numbered as vLLM does."""

    _number = -1

    def _numbered(self, name: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        place = {"item_id": f"msg_{self._base['id']}", "output_index": 0, "content_index": 0}
        own = {} if "response" in fields or "item" in fields else place
        return {"type": f"response.{name}", "sequence_number": self._number, **own, **fields}

    def _item(self, status: str, *texts: str) -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
        return {
            "type": "message",
            "id": f"msg_{self._base['id']}",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def opening(self) -> bytes:
        """See ResponseWriter.opening."""
        begun = {**self._base, "object": "response", "status": "in_progress", "output": [], "usage": None}
        item = self._item("in_progress")
        return _events(self._numbered("created", response=begun), self._numbered("output_item.added", item=item))

    def content(self, content: str, *, last: bool) -> bytes:
        """See ResponseWriter.content."""
        return _events(self._numbered("output_text.delta", delta=content))

    def closing(self, request: EmulatedRequest, reported: int) -> bytes:
        """See ResponseWriter.closing."""
        whole = self.whole(request, reported)
        (item,) = whole["output"]
        return _events(
            self._numbered("output_text.done", text="".join(request.pieces)),
            self._numbered("output_item.done", item=item),
            self._numbered(whole["status"], response=whole),
        )

    def whole(self, request: EmulatedRequest, reported: int) -> dict[str, Any]:
        """See ResponseWriter.whole."""
        usage, ends = usage_of(self._spec, request, reported), self._parsed.ends_itself
        counts = {
            "input_tokens": request.prompt_tokens,
            "output_tokens": reported,
            "total_tokens": usage["total_tokens"],
        }
        return {
            **{**self._base, "object": "response"},
            "status": "completed" if ends else "incomplete",
            "incomplete_details": None if ends else {"reason": "max_output_tokens"},
            "output": [self._item("completed", "".join(request.pieces))],
            "usage": {**counts, "input_tokens_details": usage.get("prompt_tokens_details", {})},
        }


class MessagesWriter(ResponseWriter):
    """Writes the events of Anthropic's Messages API."""

    def _message(self, *texts: str, **fields: Any) -> dict[str, Any]:
        content = [{"type": "text", "text": text} for text in texts]
        return {"type": "message", "id": self._base["id"], "role": "assistant", "content": content, **fields}

    def opening(self) -> bytes:
        """See ResponseWriter.opening."""
        begun = self._message(usage={"input_tokens": self._parsed.prompt_tokens, "output_tokens": 0}, stop_reason=None)
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return _events({"type": "message_start", "message": begun}, block)

    def content(self, content: str, *, last: bool) -> bytes:
        """See ResponseWriter.content."""
        return _events({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": content}})

    def closing(self, request: EmulatedRequest, reported: int) -> bytes:
        """See ResponseWriter.closing."""
        whole = self.whole(request, reported)
        ended = {"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"]}, "usage": whole["usage"]}
        return _events({"type": "content_block_stop", "index": 0}, ended, {"type": "message_stop"})

    def whole(self, request: EmulatedRequest, reported: int) -> dict[str, Any]:
        """See ResponseWriter.whole."""
        cached = {"cache_read_input_tokens": request.cached or 0} if self._spec.emulation.cached_tokens else {}
        usage = {"input_tokens": request.prompt_tokens - sum(cached.values()), "output_tokens": reported, **cached}
        reason = "end_turn" if self._parsed.ends_itself else "max_tokens"
        return self._message("".join(request.pieces), usage=usage, stop_reason=reason)


class PoolingWriter(ResponseWriter):
    """Writes the answer to a request that generates nothing: numbers that follow from the length of its texts."""

    def whole(self, request: EmulatedRequest, reported: int) -> dict[str, Any]:
        """See ResponseWriter.whole."""
        tokens, embeds = request.prompt_tokens, self._parsed.api == "embeddings"
        each: dict[str, Any] = (
            {"embedding": [1 / (tokens + n) for n in range(8)]} if embeds else {"relevance_score": 1 / tokens}
        )
        results = [{**each, "index": place} for place in range(self._parsed.texts)]
        return {"data" if embeds else "results": results, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


WRITERS = {
    "responses": ResponsesWriter,
    "messages": MessagesWriter,
    "embeddings": PoolingWriter,
    "rerank": PoolingWriter,
}
