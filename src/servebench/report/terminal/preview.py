"""The output of `--preview`: a workload's requests, lengths and cache hit rate."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from servebench.contracts.request import Request
from servebench.report.terminal.tables import console

EXAMPLES = 2
EXAMPLE_CHARS = 500
BINS = 10
BAR_WIDTH = 40


@dataclass(frozen=True, kw_only=True)
class Preview:
    """A workload's requests with their token counts, prompts without the chat template. `ideal_hit_rate` is that of an unlimited
    cache of whole blocks."""

    workload: str
    model: str
    tokenizer: str
    exact: bool
    requests: Sequence[Request]
    input_tokens: Sequence[int]
    output_tokens: Sequence[int]
    ideal_hit_rate: float | None
    block_tokens: int
    limit_tokens: int | None = None
    """The longest prompt with its answer, from the setting `limit_key`; None where there is no limit."""
    limit_key: str = "engine.max_model_len"


def show_preview(preview: Preview) -> None:
    """Print a preview."""
    out = console()
    out.print(_marked(preview.workload, "bold", f" for {preview.model}: {len(preview.requests)} requests"))
    counted = "the model's tokenizer" if preview.exact else "not the model's tokenizer: a run uses the engine's"
    out.print(f"counted with: {preview.tokenizer} ({counted})")
    for example in preview.requests[:EXAMPLES]:
        out.print(_marked(f"\n{example.request_id}", "bold", f" {_facts(example)}"))
        for role, text in _turns(example):
            out.print(_marked(f"  {role}:", "dim", f" {_short(text)}"))
        if example.reference is not None:
            out.print(_marked("  reference:", "dim", f" {_short(json.dumps(example.reference, default=str))}"))
    for title, lengths in (("input tokens", preview.input_tokens), ("maximum output tokens", preview.output_tokens)):
        out.print(_histogram(title, lengths))
    if (problem := _too_long(preview)) is not None:
        out.print(problem)
    if preview.ideal_hit_rate is not None:
        out.print(
            f"ideal prefix-cache hit rate: {100 * preview.ideal_hit_rate:.1f}% of prompt tokens "
            f"(unlimited cache in blocks of {preview.block_tokens} tokens, empty at the start)"
        )
    out.print(f"sessions: {_sessions(preview.requests)}")
    models = Counter(str(r.extra["model"]) for r in preview.requests if "model" in r.extra)
    if models:
        out.print("adapters: " + ", ".join(f"{name} {count}" for name, count in models.most_common()))


def _marked(text: str, style: str, rest: str) -> Text:
    return Text(text, style=style).append(rest, style=f"not {style}")


def _too_long(preview: Preview) -> Text | None:
    """A line if requests are too long for the model."""
    limit = preview.limit_tokens
    lengths = [sum(both) for both in zip(preview.input_tokens, preview.output_tokens, strict=True)]
    over = [length for length in lengths if limit is not None and length > limit]
    if not over:
        return None
    return Text(f"{len(over)} of {len(lengths)} requests are too long", style="red").append(
        f": up to {max(over):,} tokens with the answer, and "
        f"{preview.limit_key} is {limit:,}; lower the workload's lengths, or choose another model\n",
        style="default",
    )


def _facts(request: Request) -> str:
    facts = [f"{'exactly' if request.exact_output else 'at most'} {request.output_tokens} output tokens"]
    if request.session_id is not None:
        facts.append(f"session {request.session_id}")
    if request.schema is not None:
        facts.append("schema enforced")
    if request.arrival_s is not None:
        facts.append(f"arrives at {request.arrival_s:.3f} s")
    if request.think_s is not None:
        facts.append(f"after {request.think_s:.3g} s of think time")
    return ", ".join(facts)


def _turns(request: Request) -> list[tuple[str, str]]:
    if request.messages is None:
        return [("prompt", request.prompt or "")]
    return [(message.role, message.content) for message in request.messages]


def _short(text: str) -> str:
    """The beginning and the end."""
    if len(text) <= EXAMPLE_CHARS:
        return text
    half = EXAMPLE_CHARS // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"


def _sessions(requests: Sequence[Request]) -> str:
    turns = Counter(r.session_id for r in requests if r.session_id is not None)
    if not turns:
        return "none, all requests are independent"
    return f"{len(turns)}, of {min(turns.values())} to {max(turns.values())} requests"


def bins(lengths: Sequence[int], count: int = BINS) -> list[tuple[int, int, int]]:
    """Return (low, high, count) of equal ranges, both ends included; one range where all lengths are equal."""
    low, high = min(lengths), max(lengths)
    width = max(1, -(-(high - low + 1) // count))
    found = Counter((length - low) // width for length in lengths)
    return [
        (low + place * width, min(high, low + (place + 1) * width - 1), found[place])
        for place in range((high - low) // width + 1)
    ]


def _histogram(title: str, lengths: Sequence[int]) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right")
    table.add_column(width=BAR_WIDTH)
    table.add_column(justify="right")
    if lengths:
        found = bins(lengths)
        most = max(count for _, _, count in found)
        for low, high, count in found:
            span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            table.add_row(span, Bar(most, 0, count, width=BAR_WIDTH), f"{count:,}")
    return table
