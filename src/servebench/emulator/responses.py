"""Write responses in an engine's dialect: chunks, the events of the Responses and the Messages API, vectors and scores, usage and
errors. Pure."""

import json
from typing import Any

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator.requests import ParsedRequest
from servebench.emulator.scheduler import EmulatedRequest

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"X-Servebench-Emulated: true\r\nTransfer-Encoding: chunked\r\n\r\n"
)
UNITS = {"s": 1.0, "ms": 1e3, "ns": 1e9}
NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class ResponseWriter:
    """Write one answer in the engine's dialect. What is the same in every chunk is composed once."""

    def __init__(self, spec: EmulationSpec, parsed: ParsedRequest, answer_id: str, created: int) -> None:
        emulation = spec.emulation
        self._spec = spec
        self._emulation = emulation
        self._parsed = parsed
        self._end = emulation.line_end.encode() + b"\n\n"
        kind = "chat.completion.chunk" if parsed.chat else "text_completion"
        self._base = {"id": answer_id, "object": kind, "created": created, "model": spec.model_name}
        opening = json.dumps(self._base)[:-1]
        if parsed.chat:
            role = '"role":"assistant",' if emulation.first_chunk == "role_every" else ""
            before = f'data: {opening},"choices":[{{"index":0,"delta":{{{role}"content":"'
            self._between, self._stop = b'"},"finish_reason":', b"}]}"
        else:
            before = f'data: {opening},"choices":[{{"index":0,"text":"'
            zero = emulation.zero_usage and parsed.usage
            self._between = b'","logprobs":null,"finish_reason":'
            self._stop = b'}],"usage":' + json.dumps(NO_USAGE).encode() + b"}" if zero else b"}]}"
        self._before = before.encode()
        self._after = self._between + b"null" + self._stop + self._end

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + json.dumps({**self._base, "choices": choices, **more}).encode() + self._end

    def opening(self) -> bytes:
        """Return the role chunk of engines that have one; empty for others and for completions."""
        delta: dict[str, Any] = {"role": "assistant"}
        if not self._parsed.chat or self._emulation.first_chunk in ("none", "role_every"):
            return b""
        if self._emulation.first_chunk == "role_empty":
            delta["content"] = ""
        elif self._emulation.first_chunk == "role_null":
            delta["content"] = None
        return self._event([{"index": 0, "delta": delta, "finish_reason": None}])

    def content(self, content: str, *, last: bool) -> bytes:
        """Return an event with content; the last one may have the finish reason."""
        plain = '"' not in content and "\\" not in content
        escaped = (content if plain else json.dumps(content)[1:-1]).encode()
        if last and not self._emulation.finish_alone:
            reason = b'"stop"' if self._parsed.ends_itself else b'"length"'
            return self._before + escaped + self._between + reason + self._stop + self._end
        return self._before + escaped + self._after

    def closing(self, request: EmulatedRequest, reported: int) -> bytes:
        """Return the events after the last content: finish reason, usage, `[DONE]`, as the engine sends them."""
        emulation, parsed = self._emulation, self._parsed
        parts = []
        where = emulation.usage if parsed.chat else emulation.completion_usage
        usage = {"usage": usage_of(self._spec, request, reported), **timings_of(self._spec, request)}
        if emulation.finish_alone:
            reason = "stop" if parsed.ends_itself else "length"
            choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
            choice["delta" if parsed.chat else "text"] = {} if parsed.chat else ""
            parts.append(self._event([choice], **(usage if where == "finish" else {})))
        elif where == "finish":
            parts.append(self._event([], **usage))
        if where == "asked" and parsed.usage:
            parts.append(self._event([], **usage))
        if self._spec.sends_done:
            parts.append(b"data: [DONE]" + self._end)
        return b"".join(parts)

    def whole(self, request: EmulatedRequest, reported: int) -> dict[str, Any]:
        """Return the answer to a request without streaming."""
        content = "".join(request.pieces)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if self._parsed.ends_itself else "length"}
        choice |= {"message": {"role": "assistant", "content": content}} if self._parsed.chat else {"text": content}
        kind = "chat.completion" if self._parsed.chat else "text_completion"
        return {**self._base, "object": kind, "choices": [choice], "usage": usage_of(self._spec, request, reported)}


def usage_of(spec: EmulationSpec, request: EmulatedRequest, reported: int) -> dict[str, Any]:
    """Return the usage object. `reported` is the answer length that it contains."""
    usage: dict[str, Any] = {
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": reported,
        "total_tokens": request.prompt_tokens + reported,
    }
    if spec.emulation.cached_tokens:
        usage["prompt_tokens_details"] = {"cached_tokens": request.cached or 0}
    return usage


def timings_of(spec: EmulationSpec, request: EmulatedRequest) -> dict[str, dict[str, float]]:
    """Return the engine's times of a complete answer, as it reports them: fields that come with the usage."""
    if not request.first_s:
        return {}
    seconds = {
        "queue": request.admitted_s - request.ready_s,
        "prefill": request.first_s - request.admitted_s,
        "decode": request.last_s - request.first_s,
        "e2e": request.last_s - request.arrived_s,
    }

    def value(word: str) -> float:
        name, _, unit = word.rpartition("_")
        return seconds[name] * UNITS[unit]

    return {group: {name: value(word) for name, word in own.items()} for group, own in spec.emulation.timings.items()}


def error_body(spec: EmulationSpec, status: int, message: str) -> dict[str, Any]:
    """Return an error body in the engine's shape."""
    if spec.emulation.error_shape == "flat":
        return {"object": "error", "message": message, "type": "Error", "param": None, "code": status}
    if spec.emulation.error_shape == "detail":
        return {"detail": message}
    return {"error": {"message": message, "type": "Error", "param": None, "code": status}}


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


WRITERS: dict[str, type[ResponseWriter]] = {
    "responses": ResponsesWriter,
    "messages": MessagesWriter,
    "embeddings": PoolingWriter,
    "rerank": PoolingWriter,
}
