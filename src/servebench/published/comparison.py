"""Write the page of `servebench published`: each published number with the simulated one, and which conclusions hold."""

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, median_high
from typing import Literal

from servebench.emulator.cost import model_shape
from servebench.emulator.profiles import stored_profiles
from servebench.published.page import number, page, percent, table
from servebench.published.setups import (
    ENGINES,
    FITTED_UP_TO,
    POOL,
    SOUND_LEVELS,
    SOURCES,
    TOLERANCES,
    Case,
    PublishedRow,
    Simulator,
    published_cells,
    rows_of,
    same_requests,
    sound,
)
from servebench.published.simulate import Clients
from servebench.registry.registry import Registry
from servebench.util.errors import StoreError
from servebench.util.proportions import wilson

KV_REQUEST_TOKENS = 512 + 256


def write_published(path: Path, registry: Registry) -> str:
    """Simulate all set-ups, write the page to `path`, and return a summary of one line. Raises StoreError."""
    # the simulation takes a minute: fail before it, not after
    _write(path, "a")
    simulator = Simulator(registry)
    rows = rows_of(simulator)
    _write(path, "w", published_page(simulator, rows))
    return f"{_counts(rows, 'output_throughput')}; {_counts(rows, 'ttft')}"


def _write(path: Path, mode: Literal["a", "w"], text: str = "") -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def within(rows: Sequence[PublishedRow], metric: str) -> tuple[int, int]:
    """Return how many simulated numbers of a metric are within the tolerance, and how many there are."""
    errors = [row.error for row in rows if row.cell.metric == metric and row.error is not None]
    return sum(abs(error) <= TOLERANCES[metric] for error in errors), len(errors)


def _counts(rows: Sequence[PublishedRow], metric: str) -> str:
    near, count = within(rows, metric)
    name = {"output_throughput": "output throughput", "ttft": "TTFT"}[metric]
    return f"{name} within {100 * TOLERANCES[metric]:.0f}% for {near} of {count} numbers"


def published_page(simulator: Simulator, rows: Sequence[PublishedRow]) -> str:
    """Return the page in Markdown; deterministic."""
    return page(
        "Published numbers, simulated",
        {
            "": _opening(rows),
            "Every number": _every_number(rows),
            "Fastest engine by level": _leaders(rows),
            "The 5090's sweep with sustained load": _sound(simulator),
            "Which conclusions hold": _conclusions(simulator, rows),
            "The profiles": _profiles(),
        },
    )


def _opening(rows: Sequence[PublishedRow]) -> str:
    outside = [
        row for row in rows if row.error is not None and abs(row.error) > TOLERANCES.get(row.cell.metric, math.inf)
    ]
    listed = ", ".join(
        f"{row.cell.engine} {row.cell.metric} {row.cell.statistic} on {row.cell.gpu}"
        f"{f' at {row.cell.concurrency}' if row.cell.concurrency else ''} ({row.cell.value}, simulated {number(row.ours)})"
        for row in outside
    )
    missing = sum(row.ours is None for row in rows)
    return f"""Made by `servebench published`; do not edit.

Five articles compare vLLM, SGLang and TensorRT-LLM. Their {len(rows)} numbers are shipped with servebench
(`servebench/emulator/data/published_results.csv`), and emulated engines run their set-ups: the step loop of
[emulated engines](emulated.md) with a profile of few parameters for each engine and GPU, the same at every level, under the
load that the articles describe. **Everything here is emulated**: it shows the effect of a schedule and of a measurement
method, and proves nothing about an engine.

With the articles' own methods, {_counts(rows, "output_throughput")}, {_counts(rows, "ttft")};
{missing} numbers cannot be simulated. Outside these limits: {listed or "none"}.

SGLang's 118 ms at 5 is between 33 ms at 1 and 52 ms at 10: noise, like its 38.6 and 480.6 ms on the 4090, which are of single
requests.

What the articles leave out is inferred from their numbers: on the 5090, answers of 256 tokens (12,800 tokens in all
explain throughput and waves at every level); 100 requests at 100 to 500 and 200 from 1,000; and a pool of {POOL} connections,
the default of the harness's HTTP library, whose clock runs while a request waits for a connection."""


def _every_number(rows: Sequence[PublishedRow]) -> str:
    parts = []
    for source, some in groupby(rows, key=lambda row: row.cell.source):
        lines = [
            (
                row.cell.engine,
                row.cell.workload,
                str(row.cell.concurrency or "-"),
                f"{row.cell.metric}, {row.cell.statistic}",
                f"{row.cell.value} {'' if row.cell.unit == '1' else row.cell.unit}".strip(),
                number(row.ours),
                percent(row.error),
                row.comment,
            )
            for row in some
        ]
        head = ("engine", "set-up", "concurrency", "number", "published", "simulated", "error", "comment")
        parts.append(f"### {SOURCES[source][0].upper()}{SOURCES[source][1:]}\n\n{table(head, lines)}")
    return "\n\n".join(parts)


def _leaders(rows: Sequence[PublishedRow]) -> str:
    """Return which engine has the highest throughput at each level, published and simulated."""
    lines = []
    wanted = {"article 1": ("baseline sweep", "fine-grained sweep", "overload"), "article 5": ("512 in",)}
    named = [
        row
        for row in rows
        if row.cell.metric == "output_throughput"
        and row.ours is not None
        and row.cell.workload.startswith(wanted.get(row.cell.source[:9], ("-",)))
    ]
    keyed = sorted(
        named, key=lambda row: (row.cell.source, row.cell.workload.partition(",")[0], row.cell.concurrency or 0)
    )
    for (workload, level), some in groupby(
        keyed, key=lambda row: (row.cell.workload.partition(",")[0], row.cell.concurrency)
    ):
        group = list(some)
        theirs = sorted(group, key=lambda row: -(row.cell.number or 0))
        ours = sorted(group, key=lambda row: -(row.ours or 0))
        lines.append(
            (
                "H100, 70B" if workload == "512 in" else workload,
                str(level),
                _lead(theirs, [row.cell.number or 0 for row in theirs]),
                _lead(ours, [row.ours or 0 for row in ours]),
            )
        )
    return table(("sweep", "concurrency", "fastest, published", "fastest, simulated"), lines)


TIE = 0.03
"""Engines closer than this share a place: the articles' own repeats of a set-up differ by as much."""


def _lead(ordered: Sequence[PublishedRow], values: Sequence[float]) -> str:
    near = [row.cell.engine for row, value in zip(ordered, values, strict=True) if value >= (1 - TIE) * values[0]]
    return near[0] if len(near) == 1 else " = ".join(sorted(near))


def _sound(simulator: Simulator) -> str:
    lines = []
    for level in SOUND_LEVELS:
        measured = {engine: sound(simulator, engine, level) for engine in ENGINES}
        lines.append(
            (
                f"{level}{' *' if level > FITTED_UP_TO else ''}",
                *(number(measured[engine].throughput_tok_s) for engine in ENGINES),
                *(number(median_high(measured[engine].ttft_ms)) for engine in ENGINES),
            )
        )
    columns = ("tok/s", "TTFT p50 ms")
    head = ("concurrency", *(f"{engine}, {column}" for column in columns for engine in ENGINES))
    return f"""The same profiles, with every level held for 60 s after 15 s of warm-up.

{table(head, lines)}

\\* No published point has more than {FITTED_UP_TO} requests in flight: here the profile is extrapolated, and a real engine may
differ."""


def _conclusions(simulator: Simulator, rows: Sequence[PublishedRow]) -> str:
    parts = [_saturation(simulator), _jump(simulator), _trt(simulator), _gsm8k(rows), _eager(simulator)]
    return "\n\n".join([*parts, _roofline(simulator)])


def _saturation(simulator: Simulator) -> str:
    parts = []
    for engine in ENGINES:
        at = {level: sound(simulator, engine, level).throughput_tok_s for level in (64, 128)}
        parts.append(f"{engine} {number(at[64])} to {number(at[128])} tok/s ({percent(at[128] / at[64] - 1)})")
    return f"""**"All three saturate at 64" does not hold.** With 50 requests per point at most 50 are in flight, so 64 and 128
repeat 50. With the level held, from 64 to 128: {"; ".join(parts)}. TensorRT-LLM's limit is its batch size of 64, a
setting."""


def _jump(simulator: Simulator) -> str:
    def few(requests: int, pool: int | None) -> str:
        return f"{number(same_requests(simulator, 'vllm', 1000, requests, pool))} ms"

    return f"""**"TTFT jumps between 500 and 1,000" does not hold.** vLLM's mean TTFT here: {few(100, POOL)} with 100 requests
behind {POOL} connections, {few(200, POOL)} with 200 behind {POOL}, {few(200, None)} with 200 and no pool. The requested
concurrency has no effect: the second hundred waits in the client for a connection of the first, while its clock runs."""


def _trt(simulator: Simulator) -> str:
    at = {
        (engine, level): sound(simulator, engine, level).throughput_tok_s for engine in ENGINES for level in (50, 100)
    }
    others = max(at[("vllm", 50)], at[("sglang", 50)])
    beyond = max(at[("vllm", 100)], at[("sglang", 100)])
    ahead, behind = at[("trtllm", 50)] / others - 1, at[("trtllm", 100)] / beyond - 1
    return f"""**"TensorRT-LLM leads at 50, the others at 100" holds for these settings only.** With the
level held it has {percent(ahead)} at 50 and {percent(behind)} at 100 against the better of the others.
There are two reasons: its batch size is 64, so
36 of 100 requests wait for the next batch (the TTFT of 1.3 s is that wait), and the other two need about 5 ms
more per step from 33 sequences on, which looks like the end of their captured graphs on this card. Both are settings
(`engine.max_num_seqs`, graph sizes), not architectures."""


def _gsm8k(rows: Sequence[PublishedRow]) -> str:
    shares = {row.cell.engine: round((row.cell.number or 0) * 8) for row in rows if row.cell.metric == "exact_match"}
    intervals = ", ".join(
        f"{engine} {right}/8 [{100 * wilson(right, 8)[0]:.0f}, {100 * wilson(right, 8)[1]:.0f}]%"
        for engine, right in shares.items()
    )
    return f"""**The GSM8K scores show no difference.** Eight questions; 95% intervals (Wilson): {intervals}. All overlap;
`sample_too_small`. The article says this too."""


def _eager(simulator: Simulator) -> str:
    clients = Clients(concurrency=1, requests=50, input_tokens=32, output_tokens=50)

    def whole(words: tuple[str, ...]) -> float:
        case = Case(experiment="rtx4090_qwen1p5b", engine="vllm", words=words, clients=clients)
        return fmean(simulator.measure(case).e2e_ms)

    eager, compiled = whole(("+engine.extra_args.enforce-eager=true",)), whole(())
    return f"""**The 4090's ranking: `unequal_settings`.** vLLM ran with `enforce_eager`, the others compiled:
{number(eager)} ms per answer here, {number(compiled)} ms without.
What it calls TTFT is the time of all 50 tokens: TensorRT-LLM's 223.5 to 227.7 ms
are 50 steps of 4.5 ms, while the first token after a short prompt takes one."""


def _roofline(simulator: Simulator) -> str:
    spec, _ = simulator.spec("h100_llama70b_fp8", "vllm")
    shape = model_shape(spec)
    floor_ms = shape.weight_bytes / shape.bandwidth * 1e3
    free = shape.memory_bytes - shape.weight_bytes
    fit = {bits: int(free / (shape.kv_token_bytes / (16 / bits)) / KV_REQUEST_TOKENS) for bits in (16, 8)}
    fastest = max(
        cell.number or 0
        for cell in published_cells()
        if cell.source.startswith("article 5") and cell.metric == "output_throughput" and cell.concurrency == 1
    )
    return f"""**The 70B numbers on one H100 are not possible as described.** Each token reads {shape.weight_bytes / 1e9:.1f} GB
of weights;
at {shape.bandwidth / 1e9:,.0f} GB/s that takes {floor_ms:.1f} ms, so one stream cannot exceed
{1e3 / floor_ms:.0f} tok/s, but {number(fastest)} are published: speculative decoding, several GPUs or a smaller model would
explain it. After the weights, 80 GB have room for the keys and values of {fit[16]} requests of
{KV_REQUEST_TOKENS} tokens in 16 bits, {fit[8]} in 8, not for
100. The profile is fitted nevertheless, with enough memory; it reproduces the article's ranking, not the card's speed.
TTFTs that are evenly spread from 0 to twice their median mean that all streams start together, again and again."""


def _profiles() -> str:
    lines = [
        (
            one["engine"] + (f" ({one['variant']})" if one.get("variant") else ""),
            f"{one['gpus']} x {one['gpu']}",
            ", ".join(one["models"]),
            ", ".join(f"{name} {value}" for name, value in one["profile"].items()),
        )
        for one in stored_profiles()
    ]
    return f"""A step takes `decode_ms + sequence_ms * (sequences - 1) ** exponent`, from `wide_from` sequences on
`wide_ms + wide_sequence_ms * sequences` more, and `prompt_token_ms` for each prompt token; each request takes `request_ms`
in the front end, one after another, and `latency_ms` in addition.

{table(("engine", "GPU", "model", "parameters"), lines)}"""
