"""What `--preview` shows: a workload's requests, lengths and cache hit rate."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import quantiles

from servebench.contracts.request import Request
from servebench.report.blocks import Block, Gap, Line, Span

EXAMPLES = 3
EXAMPLE_CHARS = 500


@dataclass(frozen=True, kw_only=True)
class Preview:
    """A workload's requests with their token counts, prompts without the chat template. `ideal_hit_rate` is that of an unlimited
    cache of whole blocks."""

    workload: str
    model: str
    tokenizer: str
    exact: bool
    notes: Sequence[str] = ()
    data: tuple[int, int] | None = None
    """The rows of a data set and their requests, which are used again until there are as many as `requests`."""
    salted: bool = False
    """Whether prompts get a salt that the examples lack."""
    examples: Sequence[tuple[Request, int]]
    """The first rows of a data set, or requests, with their input tokens; of a conversation its last request."""
    requests: Sequence[Request]
    input_tokens: Sequence[int]
    output_tokens: Sequence[int]
    ideal_hit_rate: float | None
    block_tokens: int
    engine_counts: bool = False
    """Whether the engine says how many tokens a text has."""
    limit_tokens: int | None = None
    """The longest prompt with its answer, from the setting `limit_key`; None where there is no limit."""
    limit_key: str = "engine.max_model_len"


def preview_blocks(preview: Preview) -> Iterator[Block]:
    """Yield a preview."""
    count = _counted(len(preview.requests), "request")
    if preview.data is not None:
        rows, of_rows = preview.data
        more = f"repeated to {count}" if of_rows < len(preview.requests) else f"counted here: {count}"
        count = f"{_counted(rows, 'row')}, {_counted(of_rows, 'request')}; {more}"
    yield Line.of(Span(preview.workload, "strong"), f" for {preview.model}: {count}")
    instead = (
        ": a run uses the engine's" if preview.engine_counts else "; set model.tokenizer to its file for exact lengths"
    )
    counted = "the model's tokenizer" if preview.exact else f"not the model's tokenizer{instead}"
    yield Line.of(f"counted with: {preview.tokenizer} ({counted})")
    yield from (Line.of(Span(note, "warn")) for note in preview.notes)
    if preview.salted:
        yield Line.of(
            "each prompt is sent with 12 random characters before it, so that no cache has it (workload.cache=cold)"
        )
    for number, (example, tokens) in enumerate(preview.examples, 1):
        yield Gap()
        name, facts = (
            (example.request_id, _facts(example)) if preview.data is None else (f"row {number}:", _length(example))
        )
        yield Line.of(Span(name, "strong"), f" {_counted(tokens, 'input token')}, {facts}")
        for role, text in _turns(example):
            yield Line.of(Span(f"  {role}:", "dim"), f" {_short(text)}")
        if example.extra:
            yield Line.of(Span("  body:", "dim"), f" {_short(json.dumps(example.extra, default=str))}")
        if example.reference is not None:
            yield Line.of(Span("  reference:", "dim"), f" {_short(json.dumps(example.reference, default=str))}")
    yield Gap()
    yield Line.of(_lengths("input tokens", preview.input_tokens))
    yield Line.of(_lengths("maximum output tokens", preview.output_tokens))
    yield from _too_long(preview)
    if preview.ideal_hit_rate or (preview.data is None and preview.ideal_hit_rate is not None):
        yield Line.of(
            f"ideal prefix-cache hit rate: {100 * preview.ideal_hit_rate:.1f}% of prompt tokens "
            f"(unlimited cache in blocks of {preview.block_tokens} tokens, empty at the start)"
        )
    if preview.data is None:
        yield Line.of(f"sessions: {_sessions(preview.requests)}")
    if models := Counter(str(r.extra["model"]) for r in preview.requests if "model" in r.extra):
        yield Line.of("adapters: " + ", ".join(f"{name} {count}" for name, count in models.most_common()))


def _lengths(title: str, lengths: Sequence[int]) -> str:
    """The distribution of some lengths: the ends and quantiles between them."""
    if len(set(lengths)) < 2:
        return f"{title}: {lengths[0]:,} each" if lengths else f"{title}: none"
    tenths = quantiles(lengths, n=10, method="inclusive")
    named = (("p10", tenths[0]), ("p50", tenths[4]), ("p90", tenths[8]))
    between = ", ".join(f"{name} {value:,.0f}" for name, value in named)
    return f"{title}: {min(lengths):,} to {max(lengths):,} ({between}, mean {sum(lengths) / len(lengths):,.0f})"


def _too_long(preview: Preview) -> Iterator[Block]:
    limit = preview.limit_tokens
    lengths = [sum(both) for both in zip(preview.input_tokens, preview.output_tokens, strict=True)]
    if over := [length for length in lengths if limit is not None and length > limit]:
        yield Line.of(
            Span(f"{len(over)} of {len(lengths)} requests are too long", "bad"),
            f": up to {max(over):,} tokens with the answer, and {preview.limit_key} is {limit:,}; lower the workload's lengths, "
            "or choose another model",
        )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _length(request: Request) -> str:
    return f"{'exactly' if request.exact_output else 'at most'} {_counted(request.output_tokens, 'output token')}"


def _facts(request: Request) -> str:
    facts = (
        _length(request),
        "" if request.session_id is None else f"session {request.session_id}",
        "" if request.schema is None else "schema enforced",
        "" if request.arrival_s is None else f"arrives at {request.arrival_s:.3f} s",
        "" if request.think_s is None else f"after {request.think_s:.3g} s of think time",
    )
    return ", ".join(filter(None, facts))


def _turns(request: Request) -> list[tuple[str, str]]:
    if request.messages is None:
        return [("prompt", request.prompt or "")]
    return [
        (message.role, message.content + (f" {json.dumps(message.extra)}" if message.extra else ""))
        for message in request.messages
    ]


def _short(text: str) -> str:
    if len(text) <= EXAMPLE_CHARS:
        return text
    half = EXAMPLE_CHARS // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"


def _sessions(requests: Sequence[Request]) -> str:
    turns = Counter(r.session_id for r in requests if r.session_id is not None)
    if not turns:
        return "none, all requests are independent"
    return f"{len(turns)}, of {' to '.join(map(str, sorted({min(turns.values()), max(turns.values())})))} requests"
