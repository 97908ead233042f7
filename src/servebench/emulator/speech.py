"""How an engine speaks: the bytes of its chunks, its usage, its errors. Pure; what is the same in every chunk of an answer
is made once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator import text
from servebench.emulator.scheduler import EmulatedRequest

COMPLETION_TOKENS = 16
"""OpenAI's default for completions; a chat without a limit may fill the context."""

NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}

KNOWN_FIELDS = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stream",
        "stream_options",
        "seed",
        "stop",
        "n",
        "response_format",
        "logprobs",
        "top_logprobs",
        "ignore_eos",
        "presence_penalty",
        "frequency_penalty",
        "user",
        "tools",
        "tool_choice",
        "echo",
        "suffix",
        "best_of",
        "logit_bias",
        "generation_config",
        "cache_prompt",
        "cache_salt",
        "stop_token_ids",
        "store",
        "repetition_penalty",
        "length_penalty",
        "early_stopping",
        "use_beam_search",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "truncate_prompt_tokens",
        "add_special_tokens",
        "detokenize",
        "priority",
    }
)
"""What a strict server allows: OpenAI's fields and the sampling fields of TensorRT-LLM (`tensorrt_llm/serve/openai_protocol.py`),
which `vllm bench serve` and other clients send to every engine."""


class RequestRejected(Exception):
    """A request that cannot be answered: an HTTP status and what to say."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """What a body asks for."""

    chat: bool
    stream: bool
    usage: bool
    prompt: str
    prompt_tokens: int
    pieces: list[str]
    structured: bool
    ends_itself: bool


def parse_request(spec: EmulationSpec, path: str, body: Mapping[str, Any]) -> ParsedRequest:
    """Read a body as the engine would. Raises Refused."""
    chat = path.endswith("/chat/completions")
    _check(spec, body)
    prompt, prompt_tokens = _prompt(body, chat=chat)
    limit = spec.max_model_len or int(str(spec.model.get("context_length") or 32768))
    asked = body.get("max_completion_tokens", body.get("max_tokens"))
    most = asked if isinstance(asked, int) else (max(1, limit - prompt_tokens) if chat else COMPLETION_TOKENS)
    if prompt_tokens + (most if isinstance(asked, int) else 1) > limit:
        raise RequestRejected(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested {prompt_tokens + most} tokens "
            f"({prompt_tokens} in the prompt, {most} in the completion).",
        )
    key = text.prompt_key(spec.seed ^ int(body.get("seed") or 0), prompt)
    pieces, structured, whole = _pieces(spec, body, key, most)
    options = body.get("stream_options")
    return ParsedRequest(
        chat=chat,
        stream=bool(body.get("stream")),
        usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        pieces=pieces,
        structured=structured,
        ends_itself=whole,
    )


def _check(spec: EmulationSpec, body: Mapping[str, Any]) -> None:
    model = body.get("model")
    if spec.model_checked and model is not None and model != spec.model_name:
        raise RequestRejected(404, f"The model `{model}` does not exist.")
    strict = spec.emulation.strict_fields
    unknown = set(body) - KNOWN_FIELDS - set(spec.exact_output) if strict is not None else set()
    if strict is not None and unknown:
        raise RequestRejected(strict, f"Extra inputs are not permitted: {', '.join(sorted(unknown))}")


def _prompt(body: Mapping[str, Any], *, chat: bool) -> tuple[str, int]:
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestRejected(400, "messages: a list of messages is needed")
        prompt = text.render_chat([turn for turn in messages if isinstance(turn, Mapping)])
    else:
        given = body.get("prompt")
        if isinstance(given, list) and given and isinstance(given[0], str | list):
            if len(given) > 1:
                raise RequestRejected(
                    400, f"prompt: {len(given)} prompts in a body; the emulator answers one a request"
                )
            given = given[0]
        if isinstance(given, list) and given and all(isinstance(one, int) for one in given):
            prompt = text.text_of_ids(given)
        elif isinstance(given, str):
            prompt = given
        else:
            raise RequestRejected(400, "prompt: a text or a list of token ids is needed")
    return prompt, max(1, text.count_tokens(prompt))


def _pieces(spec: EmulationSpec, body: Mapping[str, Any], key: int, most: int) -> tuple[list[str], bool, bool]:
    """The answer, whether a schema constrains it, and whether it ends by itself."""
    form = body.get("response_format")
    kind = form.get("type") if isinstance(form, Mapping) else None
    if spec.schema_enforced and kind in ("json_schema", "json_object") and isinstance(form, Mapping):
        inner = form.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        pieces = text.schema_pieces(schema, key)
        return pieces[:most], True, len(pieces) <= most
    least = body.get("min_tokens")
    exact = bool(spec.exact_output) and all(body.get(name) == value for name, value in spec.exact_output.items())
    length = most if exact else min(most, max(text.natural_length(key), least if isinstance(least, int) else 1))
    return text.answer_pieces(key, length), False, length < most


class ResponseWriter:
    """Makes the events of one streamed answer."""

    def __init__(self, spec: EmulationSpec, wish: ParsedRequest, answer_id: str, created: int) -> None:
        own = spec.emulation
        self._spec = spec
        self._own = own
        self._wish = wish
        self._end = own.line_end.encode() + b"\n\n"
        kind = "chat.completion.chunk" if wish.chat else "text_completion"
        self._base = {"id": answer_id, "object": kind, "created": created, "model": spec.model_name}
        opening = json.dumps(self._base)[:-1]
        if wish.chat:
            role = '"role":"assistant",' if own.first_chunk == "role_every" else ""
            before = f'data: {opening},"choices":[{{"index":0,"delta":{{{role}"content":"'
            self._between, self._stop = b'"},"finish_reason":', b"}]}"
        else:
            before = f'data: {opening},"choices":[{{"index":0,"text":"'
            zero = own.zero_usage and wish.usage
            self._between = b'","logprobs":null,"finish_reason":'
            self._stop = b'}],"usage":' + json.dumps(NO_USAGE).encode() + b"}" if zero else b"}]}"
        self._before = before.encode()
        self._after = self._between + b"null" + self._stop + self._end

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + json.dumps({**self._base, "choices": choices, **more}).encode() + self._end

    def opening(self) -> bytes:
        """The role chunk of engines that have one; nothing for others and for completions."""
        delta: dict[str, Any] = {"role": "assistant"}
        if not self._wish.chat or self._own.first_chunk in ("none", "role_every"):
            return b""
        if self._own.first_chunk == "role_empty":
            delta["content"] = ""
        elif self._own.first_chunk == "role_null":
            delta["content"] = None
        return self._event([{"index": 0, "delta": delta, "finish_reason": None}])

    def content(self, words: str, *, last: bool) -> bytes:
        """An event with content; the last one may carry the finish reason."""
        plain = '"' not in words and "\\" not in words
        said = (words if plain else json.dumps(words)[1:-1]).encode()
        if last and not self._own.finish_alone:
            reason = b'"stop"' if self._wish.ends_itself else b'"length"'
            return self._before + said + self._between + reason + self._stop + self._end
        return self._before + said + self._after

    def closing(self, asked: EmulatedRequest, counted: int) -> bytes:
        """What follows the last content: finish, usage, `[DONE]`, as the engine has them."""
        own, wish = self._own, self._wish
        parts = []
        where = own.usage if wish.chat else own.completion_usage
        usage = usage_of(self._spec, asked, counted)
        if own.finish_alone:
            reason = "stop" if wish.ends_itself else "length"
            choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
            choice["delta" if wish.chat else "text"] = {} if wish.chat else ""
            parts.append(self._event([choice], **({"usage": usage} if where == "finish" else {})))
        elif where == "finish":
            parts.append(self._event([], usage=usage))
        if where == "asked" and wish.usage:
            parts.append(self._event([], usage=usage))
        if self._spec.sends_done:
            parts.append(b"data: [DONE]" + self._end)
        return b"".join(parts)

    def whole(self, asked: EmulatedRequest, counted: int) -> dict[str, Any]:
        """The answer to a request that did not ask for a stream."""
        said = "".join(asked.pieces)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if self._wish.ends_itself else "length"}
        choice |= {"message": {"role": "assistant", "content": said}} if self._wish.chat else {"text": said}
        kind = "chat.completion" if self._wish.chat else "text_completion"
        return {**self._base, "object": kind, "choices": [choice], "usage": usage_of(self._spec, asked, counted)}


def usage_of(spec: EmulationSpec, asked: EmulatedRequest, counted: int) -> dict[str, Any]:
    """The usage object. `counted` is what it says of the answer's length."""
    usage: dict[str, Any] = {
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": counted,
        "total_tokens": asked.prompt_tokens + counted,
    }
    if spec.emulation.cached_tokens:
        usage["prompt_tokens_details"] = {"cached_tokens": asked.cached or 0}
    return usage


def error_body(spec: EmulationSpec, status: int, message: str) -> dict[str, Any]:
    """An error as the engine says it."""
    if spec.emulation.error_shape == "flat":
        return {"object": "error", "message": message, "type": "Error", "param": None, "code": status}
    if spec.emulation.error_shape == "detail":
        return {"detail": message}
    return {"error": {"message": message, "type": "Error", "param": None, "code": status}}
