"""The kinds `chat` and `completions` of OpenAI's API."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Message, Request
from servebench.protocol.json_values import join_text, object_at
from servebench.protocol.kinds.choices import ChoicesScan, text_of
from servebench.protocol.kinds.kind import RequestKind

LOGPROB_MAX = 1e9
"""Engines write about -9999 for an impossible token; a larger magnitude is not a log-probability."""

PROBE: Mapping[str, Any] = {"request_id": "probe", "output_tokens": 8, "exact_output": True}
"""With a fixed output length even a model whose first token would be its last generates something."""


class _Generation(RequestKind):
    """What both kinds share."""

    scan = ChoicesScan
    correctness = "parity"
    text_at: ClassVar[tuple[str, ...]]
    """Where a choice of a whole answer has its text."""

    def body(self, request: Request, model: str, dialect: Dialect, *, streamed: bool = True) -> dict[str, Any]:
        """See RequestKind.body."""
        body: dict[str, Any] = {"model": model}
        if request.messages is not None:
            turns = [{"role": m.role, "content": m.content, **m.extra} for m in request.messages]
            body["messages"] = self.illustrated(turns, request)
        else:
            body["prompt"] = request.prompt
        body[dialect.names.get("max_tokens", "max_tokens")] = request.output_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if streamed:
            body.update(dialect.stream_fields)
        if request.seed is not None and dialect.takes_seed:
            body["seed"] = request.seed
        if request.exact_output:
            body.update(dialect.exact_output)
        if request.schema is not None and dialect.json_schema:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": dict(request.schema), "strict": True},
            }
        body.update(request.extra)
        return body

    def whole_problem(self, document: Mapping[str, Any]) -> str | None:
        """See RequestKind.whole_problem."""
        try:
            held = document["choices"][0]
            for name in self.text_at:
                # some servers leave the content of an answer out that only calls tools
                held = held.get(name) if held.get("tool_calls") else held[name]
        except (KeyError, IndexError, TypeError, AttributeError):
            return f"it has no choices[0].{'.'.join(self.text_at)}"
        return None if held is None or isinstance(held, str | list) else "its content is not text"

    def logprobs_of(self, document: Mapping[str, Any]) -> tuple[list[str], list[float]] | None:
        """See RequestKind.logprobs_of. Engines use the form of either kind for both."""
        value = document["choices"][0].get("logprobs")
        if not isinstance(value, dict):
            return None
        if isinstance(content := value.get("content"), list):
            pairs = [(one.get("token"), one.get("logprob")) for one in content if isinstance(one, dict)]
        else:
            tokens, logprobs = value.get("tokens"), value.get("token_logprobs")
            if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
                return None
            pairs = list(zip(tokens, logprobs, strict=True))
        known = [
            (join_text([token]), float(logprob))
            for token, logprob in pairs
            if isinstance(token, str) and isinstance(logprob, int | float) and abs(logprob) < LOGPROB_MAX
        ]
        if not known or len(known) < len(pairs):
            return None
        return [token for token, _ in known], [logprob for _, logprob in known]


class Chat(_Generation):
    """Messages and one more of the assistant."""

    name = "chat"
    path = "/chat/completions"
    title = "chat completion"
    takes_messages = True
    probe = Request(messages=(Message("user", "Say yes."),), **PROBE)
    probe_instead = ("completions",)
    # OpenAI's models that think
    other_names: ClassVar[Mapping[str, str]] = {"max_tokens": "max_completion_tokens"}
    logprob_fields: ClassVar[Mapping[str, Any]] = {"logprobs": True}
    text_at = ("message", "content")

    def calls_in(self, document: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
        """See RequestKind.calls_in."""
        calls = document["choices"][0]["message"].get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = object_at(call, "function")
            yield function.get("name"), text_of(function.get("arguments", ""))


class Completions(_Generation):
    """A text that is continued."""

    name = "completions"
    path = "/completions"
    title = "completion"
    probe = Request(prompt="Say yes:", **PROBE)
    probe_instead = ("chat",)
    logprob_fields: ClassVar[Mapping[str, Any]] = {"logprobs": 1}
    text_at = ("text",)
