"""Write the page of `servebench published`: each published number with the simulated one, and which conclusions hold."""

import math
import textwrap
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, median_high
from typing import Any, Literal

from servebench.emulator.cost import model_shape, stored_profiles
from servebench.published.setups import POOL, TOLERANCES, Case, PublishedRow, Simulator, rows_of, same_requests, sound
from servebench.published.simulate import Clients
from servebench.registry.registry import Registry
from servebench.util.errors import StoreError, reason_of
from servebench.util.figures import change, number
from servebench.util.markdown import table
from servebench.util.proportions import wilson

ENGINES = ("vllm", "sglang", "trtllm")
SOUND_LEVELS = (1, 20, 32, 50, 64, 100, 128, 256, 500, 1000)
FITTED_UP_TO = 100
"""No published point of the 5090 has more requests in flight: above it, the profile is extrapolated."""
TIE = 0.03
"""Engines closer than this share a place: the articles' own repeats of a set-up differ by as much."""
KV_REQUEST_TOKENS = 512 + 256
WIDTH = 118
TITLES = {
    "article 1": "An article on vLLM, SGLang and TensorRT-LLM on an RTX 5090",
    "article 2": "An article on the three engines on an RTX 4090",
    "article 3": "An article on vLLM, TensorRT-LLM and SGLang on two H100",
    "article 4": "An article on engines for a 70B model",
    "article 5": "An article on four engines on an H100",
}


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
        raise StoreError(f"cannot write {path}: {reason_of(error)}") from error


def within(rows: Sequence[PublishedRow], metric: str) -> tuple[int, int]:
    """Return how many simulated numbers of a metric are within the tolerance, and how many there are."""
    errors = [row.error for row in rows if row.cell.metric == metric and row.error is not None]
    return sum(abs(error) <= TOLERANCES[metric] for error in errors), len(errors)


def _counts(rows: Sequence[PublishedRow], metric: str) -> str:
    near, count = within(rows, metric)
    name = {"output_throughput": "output throughput", "ttft": "TTFT"}[metric]
    return f"{name} within {100 * TOLERANCES[metric]:.0f}% for {near} of {count} numbers"


def published_page(simulator: Simulator, rows: Sequence[PublishedRow]) -> str:
    """Return the page in Markdown; deterministic. Prose is wrapped, tables are not."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("servebench.published"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(number=number, change=change)
    text = environment.get_template("published.md").render(
        rows=rows,
        counts=lambda metric: _counts(rows, metric),
        outside=_outside(rows),
        articles=[
            (TITLES[source], _numbers(list(some)))
            for source, some in groupby(rows, key=lambda row: row.cell.source[:9])
        ],
        leaders=_leaders(rows),
        sustained=_sustained(simulator),
        speed=lambda engine, level: sound(simulator, engine, level).throughput_tok_s,
        ttft_ms=lambda requests, pool: same_requests(simulator, "vllm", 1000, requests, pool),
        gsm8k=_gsm8k(rows),
        eager_ms=_answer_ms(simulator, "+engine.extra_args.enforce-eager=true"),
        compiled_ms=_answer_ms(simulator),
        profiles=_profiles(),
        engines=ENGINES,
        pool=POOL,
        fitted_up_to=FITTED_UP_TO,
        **_roofline(simulator, rows),
    )
    paragraphs = [one if one.startswith(("|", "#")) else _wrapped(one) for one in text.strip().split("\n\n")]
    return "\n\n".join(paragraphs) + "\n"


def _wrapped(paragraph: str) -> str:
    return textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)


def _outside(rows: Sequence[PublishedRow]) -> str:
    listed = [
        f"{row.cell.engine} {row.cell.metric} {row.cell.statistic} on {row.cell.gpu}"
        f"{f' at {row.cell.concurrency}' if row.cell.concurrency else ''} ({row.cell.value}, simulated {number(row.ours)})"
        for row in rows
        if row.error is not None and abs(row.error) > TOLERANCES.get(row.cell.metric, math.inf)
    ]
    return ", ".join(listed) or "none"


def _numbers(rows: Sequence[PublishedRow]) -> str:
    lines = [
        (
            row.cell.engine,
            row.cell.workload,
            str(row.cell.concurrency or "-"),
            f"{row.cell.metric}, {row.cell.statistic}",
            f"{row.cell.value} {'' if row.cell.unit == '1' else row.cell.unit}".strip(),
            number(row.ours),
            change(row.error),
            row.comment,
        )
        for row in rows
    ]
    head = ("engine", "set-up", "concurrency", "number", "published", "simulated", "error", "comment")
    return "\n".join(table(head, lines, left=(0, 1, 3, 7)))


def _leaders(rows: Sequence[PublishedRow]) -> str:
    """Return which engine has the highest throughput at each level, published and simulated."""

    def sweep_and_level(row: PublishedRow) -> tuple[str, str, int]:
        return row.cell.source, row.cell.workload.partition(",")[0], row.cell.concurrency or 0

    lines = []
    wanted = {"article 1": ("baseline sweep", "fine-grained sweep", "overload"), "article 5": ("512 in",)}
    named = [
        row
        for row in rows
        if row.cell.metric == "output_throughput"
        and row.ours is not None
        and row.cell.workload.startswith(wanted.get(row.cell.source[:9], ("-",)))
    ]
    for (_, sweep, level), some in groupby(sorted(named, key=sweep_and_level), key=sweep_and_level):
        group = list(some)
        published = _lead({row.cell.engine: row.cell.number or 0 for row in group})
        simulated = _lead({row.cell.engine: row.ours or 0 for row in group})
        lines.append(("H100, 70B" if sweep == "512 in" else sweep, str(level), published, simulated))
    head = ("sweep", "concurrency", "fastest, published", "fastest, simulated")
    return "\n".join(table(head, lines, left=(0, 2, 3)))


def _lead(values: dict[str, float]) -> str:
    return " = ".join(sorted(name for name, value in values.items() if value >= (1 - TIE) * max(values.values())))


def _sustained(simulator: Simulator) -> str:
    lines = []
    for level in SOUND_LEVELS:
        measured = [sound(simulator, engine, level) for engine in ENGINES]
        lines.append(
            (
                f"{level}{' *' if level > FITTED_UP_TO else ''}",
                *(number(one.throughput_tok_s) for one in measured),
                *(number(median_high(one.ttft_ms)) for one in measured),
            )
        )
    columns = ("tok/s", "TTFT p50 ms")
    head = ("concurrency", *(f"{engine}, {column}" for column in columns for engine in ENGINES))
    return "\n".join(table(head, lines, left=()))


def _gsm8k(rows: Sequence[PublishedRow]) -> str:
    right = {row.cell.engine: round((row.cell.number or 0) * 8) for row in rows if row.cell.metric == "exact_match"}
    intervals = {engine: wilson(count, 8) for engine, count in right.items()}
    return ", ".join(
        f"{engine} {right[engine]}/8 [{100 * low:.0f}, {100 * high:.0f}]%" for engine, (low, high) in intervals.items()
    )


def _answer_ms(simulator: Simulator, *words: str) -> float:
    """Return the mean time of an answer in the 4090 article's set-up of vLLM, with these overrides."""
    clients = Clients(concurrency=1, requests=50, input_tokens=32, output_tokens=50)
    case = Case(experiment="rtx4090_qwen1p5b", engine="vllm", words=words, clients=clients)
    return fmean(simulator.measure(case).e2e_ms)


def _roofline(simulator: Simulator, rows: Sequence[PublishedRow]) -> dict[str, Any]:
    """Return what one H100 can do with the 70B model at most, and the fastest published stream."""
    spec, _ = simulator.spec("h100_llama70b_fp8", "vllm")
    shape = model_shape(spec)
    free = shape.memory_bytes - shape.weight_bytes
    streams = [row.cell for row in rows if row.cell.source.startswith("article 5") and row.cell.concurrency == 1]
    return {
        "shape": shape,
        "floor_ms": shape.weight_bytes / shape.bandwidth * 1e3,
        "kv_request_tokens": KV_REQUEST_TOKENS,
        "fit": {bits: int(free / (shape.kv_token_bytes / (16 / bits)) / KV_REQUEST_TOKENS) for bits in (16, 8)},
        "fastest": max(cell.number or 0 for cell in streams if cell.metric == "output_throughput"),
    }


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
    return "\n".join(table(("engine", "GPU", "model", "parameters"), lines, left=range(4)))
