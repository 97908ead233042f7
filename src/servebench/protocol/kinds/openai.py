"""The kinds `chat` and `completions` of OpenAI's API: the answers of both have `choices` and `usage`.

The scan is the only definition of generated content of these kinds. It covers every dialect seen in the field: streamed or not,
with token ids or usage in each event, llama.cpp's timings, reasoning under two names, content in parts, errors inside HTTP
200. The table is in `servebench.measure.derive`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Message, Request
from servebench.protocol.answer import AnswerScan, TextPlace
from servebench.protocol.errors import as_json, error_message
from servebench.protocol.json_values import count_of, join_text, object_at
from servebench.protocol.kinds.kind import RequestKind

REASON_CHARS_MAX = 64
"""How much of a finish reason is kept; the known ones have at most a dozen characters."""

BROKEN_OFF = ("abort", "cancelled", "error", "timeout")
"""Finish reasons of answers that their server gave up: vLLM and SGLang, TensorRT-LLM, OpenRouter and LMDeploy, TensorRT-LLM."""

TEXT_FIELDS = ("content", "reasoning", "reasoning_content")
"""The fields of a delta that hold generated text."""

LOGPROB_MAX = 1e9
"""Engines write about -9999 for an impossible token; a larger magnitude is not a log-probability."""

PROBE: Mapping[str, Any] = {"request_id": "probe", "output_tokens": 8, "exact_output": True}
"""With a fixed output length even a model whose first token would be its last generates something."""


def text_of(arguments: object) -> object:
    """Return the arguments of a call as text: some versions of TGI and Ollama send an object."""
    return as_json(arguments) if isinstance(arguments, dict) else arguments


class ChoicesScan(AnswerScan):
    """Reads chunks with `choices`, of chats and completions alike."""

    __slots__ = ()

    def add_chunk(self, chunk: dict[str, Any], stamp_ns: int, read_index: int) -> None:
        """See AnswerScan.add_chunk."""
        choices = chunk.get("choices")
        self.details.update(chunk)
        self.details.pop("choices", None)
        has_content, ids = False, 0
        if choices.__class__ is list:
            for choice in choices:
                if choice.__class__ is dict:
                    content, count = self._choice(choice, stamp_ns)
                    has_content = has_content or content
                    ids += count
        # Groq's
        usage = chunk.get("usage") or object_at(chunk, "x_groq").get("usage")
        generated = self._usage(usage) if usage.__class__ is dict else None
        if has_content:
            timings = chunk.get("timings")
            predicted = count_of(timings.get("predicted_n")) if timings.__class__ is dict else None
            self.add_event(stamp_ns, read_index, ids, generated, predicted)
        elif generated is not None and not choices:
            # a usage beside a choice may be one that grows with every chunk: it does not prove the end
            self.ended_by_usage = True
        if chunk.get("error") or chunk.get("object") == "error":
            self.fail(error_message(chunk) or "an error without a message")

    def text_place(self, chunk: dict[str, Any]) -> TextPlace | None:
        """See AnswerScan.text_place."""
        choices = chunk.get("choices")
        has_more = any(chunk.get(name) for name in ("usage", "timings", "error")) or chunk.get("object") == "error"
        if has_more or choices.__class__ is not list or len(choices) != 1 or choices[0].__class__ is not dict:
            return None
        choice: dict[str, Any] = choices[0]
        if choice.get("finish_reason") or choice.get("token_ids").__class__ is list or choice.get("message"):
            return None
        delta = choice.get("delta")
        if delta is None:
            text = choice.get("text")
            return TextPlace(choice, "text", self.text_parts) if text and text.__class__ is str else None
        if delta.__class__ is not dict or choice.get("text") or delta.get("tool_calls"):
            return None
        names = [name for name in TEXT_FIELDS if delta.get(name)]
        if len(names) != 1 or delta[names[0]].__class__ is not str:
            return None
        return TextPlace(delta, names[0], self.text_parts if names[0] == "content" else self.reasoning_parts)

    def _choice(self, choice: dict[str, Any], stamp_ns: int) -> tuple[bool, int]:
        """Take a choice; return whether it carries generated content, and how many token ids."""
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message")
        finish_reason = choice.get("finish_reason")
        if finish_reason.__class__ is str and finish_reason:
            self.finish_reason = join_text([finish_reason[:REASON_CHARS_MAX]])
            if finish_reason in BROKEN_OFF:
                self.fail(
                    error_message({"error": choice.get("error")}) or f"the server ended it with '{finish_reason}'"
                )
        output = reasoning = False
        if delta.__class__ is dict:
            content = delta.get("content") or delta.get("refusal")
            if content and content.__class__ is str:
                self.text_parts.append(content)
                output = True
            elif content and content.__class__ is list:
                output, reasoning = self._content_parts(content)
            # some servers send the same text under both names
            thought = delta.get("reasoning") or delta.get("reasoning_content")
            if thought and thought.__class__ is str:
                self.reasoning_parts.append(thought)
                reasoning = True
            calls = delta.get("tool_calls")
            # earlier TGI, and some versions of LiteLLM, send a call without a list
            if calls and self._tool_calls(calls if calls.__class__ is list else [calls]):
                output = True
        text = choice.get("text")
        if text and text.__class__ is str:
            self.text_parts.append(text)
            output = True
        ids = choice.get("token_ids")
        count = len(ids) if ids.__class__ is list else 0
        if output and self.first_output_ns is None:
            self.first_output_ns = stamp_ns
        return output or reasoning or count > 0, count

    def _content_parts(self, parts: list[Any]) -> tuple[bool, bool]:
        """Take content in parts, as Mistral's servers send it; return whether it has text, and whether it has reasoning."""
        output = reasoning = False
        for part in parts:
            if not isinstance(part, dict):
                continue
            text, thought = part.get("text"), part.get("thinking")
            if isinstance(text, str) and text:
                self.text_parts.append(text)
                output = True
            for step in thought if isinstance(thought, list) else [{"text": thought}]:
                text = step.get("text") if isinstance(step, dict) else None
                if isinstance(text, str) and text:
                    self.reasoning_parts.append(text)
                    reasoning = True
        return output, reasoning

    def _tool_calls(self, calls: list[Any]) -> bool:
        """Take tool calls; return whether any has a name or arguments. Arguments are kept as text: they are the answer."""
        generated = False
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                continue
            arguments = text_of(function.get("arguments"))
            if isinstance(arguments, str) and arguments:
                self.text_parts.append(arguments)
                generated = True
            generated = self.add_call(function.get("name")) or generated
        return generated

    def _usage(self, usage: dict[str, Any]) -> int | None:
        """Keep a usage and return its output tokens. One of zeros only is a placeholder (Ollama sends it with every chunk)."""
        prompt, output = count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens"))
        if not prompt and not output and not count_of(usage.get("total_tokens")):
            return None
        if prompt is not None:
            self.prompt_tokens = prompt
        if output is not None:
            self.usage_tokens = output
        cached = count_of(object_at(usage, "prompt_tokens_details").get("cached_tokens"))
        if cached is not None:
            self.cached_tokens = cached
        thought = count_of(object_at(usage, "completion_tokens_details").get("reasoning_tokens"))
        if thought is not None:
            self.reasoning_tokens = thought
        return output


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
