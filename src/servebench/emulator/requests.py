"""Parse generation requests as the engine does, and compose their answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator import text
from servebench.emulator.scheduler import EmulatedRequest
from servebench.protocol.json_values import object_at

APIS = {
    **{"/chat/completions": "chat", "/completions": "completions", "/responses": "responses", "/messages": "messages"},
    **{"/embeddings": "embeddings", "/rerank": "rerank"},
}
"""By the end of the path."""
TYPED_FIELDS = {
    "responses": ("input", "instructions", "max_output_tokens", "text"),
    "messages": ("messages", "system", "max_tokens", "output_config"),
}
"""Where requests of APIs with typed events have their turns, their system prompt, the longest answer and its schema."""
COMPLETION_TOKENS = 16
"""OpenAI's default for completions; a chat without a limit may fill the context."""

KNOWN_FIELDS = frozenset(
    (
        *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "min_tokens", "temperature"),
        *("top_p", "top_k", "min_p", "stream", "stream_options", "seed", "stop", "n", "response_format"),
        *("logprobs", "top_logprobs", "ignore_eos", "presence_penalty", "frequency_penalty", "user", "tools"),
        *("tool_choice", "echo", "suffix", "best_of", "logit_bias", "generation_config", "cache_prompt"),
        *("cache_salt", "stop_token_ids", "store", "repetition_penalty", "length_penalty", "early_stopping"),
        *("use_beam_search", "include_stop_str_in_output", "skip_special_tokens"),
        *("chat_template_kwargs", "reasoning_effort"),
        *("spaces_between_special_tokens", "truncate_prompt_tokens", "add_special_tokens", "detokenize", "priority"),
    )
)
"""The fields that a strict server accepts: OpenAI's fields and the sampling fields of TensorRT-LLM
(`tensorrt_llm/serve/openai_protocol.py`), which `vllm bench serve` and other clients send to every engine."""


class RequestRejected(Exception):
    """A request that is rejected with an HTTP status and a message."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


class RejectedInStream(Exception):
    """A request whose rejection has already been sent as a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """What a request's body asks for, and at which route. `pieces` are the tokens of the answer."""

    api: str
    stream: bool = False
    usage: bool = True
    prompt: str
    prompt_tokens: int
    pieces: list[str]
    structured: bool = False
    ends_itself: bool = True
    texts: int = 0

    @property
    def chat(self) -> bool:
        """Whether it is a conversation."""
        return self.api != "completions"

    def in_engine(self, key: int, owner: object = None) -> EmulatedRequest:
        """Return the request that the scheduler gets."""
        return EmulatedRequest(
            key=key,
            prompt=self.prompt,
            prompt_tokens=self.prompt_tokens,
            pieces=self.pieces,
            structured=self.structured,
            owner=owner,
        )


def parse_request(spec: EmulationSpec, path: str, body: Mapping[str, Any]) -> ParsedRequest:
    """Parse a body as the engine does. Raises RequestRejected."""
    api = APIS[path.rpartition("/v1")[2]]
    if api in ("embeddings", "rerank"):
        return _pooled(api, body)
    body, chat = as_chat(spec, api, body), api != "completions"
    _check_fields(spec, body)
    prompt, prompt_tokens = _prompt(body, chat=chat)
    limit = spec.max_model_len or int(str(spec.model.get("context_length") or 32768))
    requested = body.get("max_completion_tokens", body.get("max_tokens"))
    most = requested if isinstance(requested, int) else (max(1, limit - prompt_tokens) if chat else COMPLETION_TOKENS)
    if prompt_tokens + (most if isinstance(requested, int) else 1) > limit:
        raise RequestRejected(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested {prompt_tokens + most} tokens "
            f"({prompt_tokens} in the prompt, {most} in the completion).",
        )
    key = text.prompt_key(spec.seed ^ int(body.get("seed") or 0), prompt)
    pieces, structured, ends_itself = _answer(spec, body, key, most)
    options = body.get("stream_options")
    return ParsedRequest(
        api=api,
        stream=bool(body.get("stream")),
        usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        pieces=pieces,
        structured=structured,
        ends_itself=ends_itself,
    )


def _pooled(api: str, body: Mapping[str, Any]) -> ParsedRequest:
    """Parse a request without a generation: one step after its texts, of which a query is read with each document."""
    given, query = body.get("input", body.get("documents")), str(body.get("query", ""))
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise RequestRejected(400, "a text or a list of texts is required")
    prompts = [query + str(one) for one in texts]
    tokens = sum(text.count_tokens(str(one)) for one in texts) + len(texts) * text.count_tokens(query)
    prompt = "".join(prompts)
    return ParsedRequest(api=api, prompt=prompt, prompt_tokens=max(1, tokens), pieces=["."], texts=len(texts))


def as_chat(spec: EmulationSpec, api: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of a chat that asks for the same as one of the APIs with typed events; that of another as it is."""
    if api not in TYPED_FIELDS:
        return body
    turns, system, limit, form = (body.get(name) for name in TYPED_FIELDS[api])
    if api == "messages" and not isinstance(limit, int):
        raise RequestRejected(400, "max_tokens is required")
    turns = [{"role": "user", "content": turns}] if isinstance(turns, str) else turns
    before = [{"role": "system", "content": system}] if system else []
    kept = {*KNOWN_FIELDS, *spec.exact_output} - {"messages", "tools"}
    return {
        **{name: value for name, value in body.items() if name in kept},
        "messages": [*before, *turns] if isinstance(turns, list) and turns else None,
        "max_tokens": limit,
        "stream_options": {"include_usage": True},
        **({"response_format": asked} if (asked := object_at(form, "format")) else {}),
    }


def _check_fields(spec: EmulationSpec, body: Mapping[str, Any]) -> None:
    model = body.get("model")
    if spec.model_checked and model not in (None, spec.model_name, *spec.adapters):
        raise RequestRejected(404, f"The model `{model}` does not exist.")
    strict = spec.emulation.strict_fields
    known = KNOWN_FIELDS if spec.known_fields is None else set(spec.known_fields)
    unknown = set(body) - known - set(spec.exact_output) if strict is not None else set()
    if strict is not None and unknown:
        raise RequestRejected(strict, f"Extra inputs are not permitted: {', '.join(sorted(unknown))}")


def _prompt(body: Mapping[str, Any], *, chat: bool) -> tuple[str, int]:
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestRejected(400, "messages must be a list of messages")
        prompt = text.render_chat([turn for turn in messages if isinstance(turn, Mapping)])
    else:
        given = body.get("prompt")
        if isinstance(given, list) and given and isinstance(given[0], str | list):
            if len(given) > 1:
                raise RequestRejected(400, f"prompt: {len(given)} prompts; the emulator accepts one prompt per request")
            given = given[0]
        if isinstance(given, list) and given and all(isinstance(token, int) for token in given):
            prompt = text.text_of_ids(given)
        elif isinstance(given, str):
            prompt = given
        else:
            raise RequestRejected(400, "prompt must be a text or a list of token ids")
    return prompt, max(1, text.count_tokens(prompt))


def _answer(spec: EmulationSpec, body: Mapping[str, Any], key: int, most: int) -> tuple[list[str], bool, bool]:
    """Return the answer's tokens, whether a schema constrains it, and whether it ends by itself."""
    response_format = body.get("response_format")
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    prompt = body["messages"][-1].get("content") if "messages" in body else body.get("prompt")
    if isinstance(prompt, str) and prompt in spec.answers:
        return text.split_tokens(spec.answers[prompt]), False, True
    if spec.schema_enforced and kind is not None and kind != "text":
        pieces = text.schema_pieces(_schema_in(response_format), key)
        return pieces[:most], True, len(pieces) <= most
    least = body.get("min_tokens")
    exact = bool(spec.exact_output) and all(body.get(name) == value for name, value in spec.exact_output.items())
    length = most if exact else min(most, max(text.natural_length(key), least if isinstance(least, int) else 1))
    return text.answer_pieces(key, length), False, length < most


def _schema_in(value: object) -> Mapping[str, Any] | None:
    """Return the schema of a `response_format`, wherever an engine has it."""
    if not isinstance(value, Mapping):
        return None
    schema = value.get("schema")
    return schema if isinstance(schema, Mapping) else next(filter(None, map(_schema_in, value.values())), None)
