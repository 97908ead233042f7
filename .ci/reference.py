"""Write the pages of the documentation that list config keys, columns and warnings, from the code: `make reference`.

A test fails while a page is out of date.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from servebench.analysis.warnings.catalog import AFFECTS_ALL, CATALOG, SPEED, WarningType
from servebench.config.keys import section_types
from servebench.contracts.columns import columns_of
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import Record, SessionRow
from servebench.registry.conf import conf_dir
from servebench.registry.registry import registry
from servebench.report.export.markdown import table
from servebench.util.safe_text import clean_markdown

DOCS = Path(__file__).parents[1] / "docs"
CONFIG = """# Config keys

This page is generated from the files in `conf/` and in the plugins of this repository: change them
there, then run `make reference`.

A group is chosen with `GROUP=OPTION` (`engine=vllm`), a key set with `GROUP.KEY=VALUE` (`engine.max_model_len=8192`). `null`
leaves the choice to the engine or the workload, `???` has to be set. Flags of an engine without a key of their own go into
`engine.extra_args`. A key that ends in `_s` is in seconds and may be written as `90s`, `10m` or `2h`. Each key has an example;
a shell needs quotes around brackets and braces.

## Most used

"""
MOST_USED = """
engine=vllm,sglang  # the engines; several take -m
endpoint=http://host:8000  # a server that is already running (engine=openai launch=attach launch.base_url=URL)
model=llama-3.1-8b-instruct  # a described model
model.name=OWNER/NAME  # any model of the hub
model.path=DIR  # a local folder or file
gpu=h100  # its memory, bandwidth and arithmetic (the price: gpu.price_usd_per_hour)
engine.tensor_parallel_size=2  # GPUs for each engine
engine.max_model_len=8192  # the longest prompt and answer together
engine.extra_args={kv-cache-dtype: fp8}  # flags of the engine
engine.executable=/opt/vllm/bin/vllm  # another installation
launch=docker  # where the engine runs: process, docker, podman, attach, emulated
launch.api_key_env=MY_KEY  # the variable that holds the key
workload=rag_prefix  # what is asked
workload.input_tokens=512  # tokens of a prompt
workload.output_tokens=32..96  # tokens of an answer
load=sweep  # the levels: smoke, quick, sweep, rate, saturation, slo
load.concurrency=[1,8,32]  # users at a time
load.rate=[2,4]  # requests a second (load=rate)
duration=60s  # length of a level (load.duration_s)
slo.ttft_ms=500  # limits for goodput and load=slo
quality=mmlu  # questions with known answers
starts=3  # starts of each engine (study.starts)
study.until=decided  # as many starts as a verdict takes
budget=30m  # at most so much time of engines (study.budget)
seed=1  # of prompts, questions and emulation
tracking.uri=http://mlflow:5000  # where results go
"""
COLUMNS = """# Columns of the stored tables

This page is generated from the definitions in `servebench.contracts`: change them there, then run `make reference`.

What is unknown is null (empty in CSV), never 0; a type with `?` may be null. Times ending in `_ns` are nanoseconds since the
epoch. Latencies are those of ok requests sent inside the measurement window.
"""
WARNINGS = """# Warnings

This page is generated from `servebench.analysis.warnings.catalog`: change it there, then run `make reference`.

A point carries the codes of its warnings (column `doubts`), and `servebench show` prints each with its figures. **void**: the
point says nothing. **doubtful**: the numbers named may be wrong; comparisons are wider or provisional. **mark**: worth
knowing, the verdict stays.
"""
GROUPS = ("engine", "launch", "model", "gpu", "workload", "load", "quality", "slo", "telemetry", "tracking", "study")
CATALOGUES = ("model", "gpu")
"""Groups whose options differ in data only."""
UNLISTED = ("name", "defaults")
_KEY = re.compile(r"( *)(\w+):(?: +(.*?))?(?:  +# *(.*))?$")
_EXAMPLE = re.compile(
    r'(?:^|,? )such as (\{(?:[^{}]|\{[^{}]*\})*\}|\[[^]]*\]|"[^"]*"|[^\s,;:()]\S*?(?=[,;:)]*(?:\s|$)))'
)
"""`such as VALUE`: a mapping, a list, a quoted text or a word."""


@dataclass(frozen=True)
class ConfigKey:
    """A key with its dotted name, its value as written, and the comment above it without its `such as EXAMPLE`."""

    name: str
    value: str
    meaning: str
    example: str = ""


def config_reference() -> str:
    """Return the page as Markdown."""
    used = [tuple(line.split("  # ")) for line in MOST_USED.strip().splitlines()]
    rows = [(f"`{example}`", meaning) for example, meaning in used]
    common = [*table(("write", "for"), rows, left=range(2), escaped=True), ""]
    return CONFIG + "\n".join([*common, *(line for group in GROUPS for line in _section(group))]) + "\n"


def options_of(group: str) -> dict[str, tuple[str, list[ConfigKey]]]:
    """Return the options of a group, the common keys as the option "": what each is for, and its keys."""
    found = {path.stem: read_keys(path.read_text()) for path in sorted(_files(group))}
    base = found.pop("base", None) or found.get("none" if group == "gpu" else "")
    return {**({"": base} if base else {}), **found}


def _section(group: str) -> Iterator[str]:
    options = options_of(group)
    yield f"## {group}\n"
    if "" in options:
        purpose, keys = options.pop("")
        yield f"{purpose}\n"
        yield from [*_keys(group, "", keys), ""]
    if group in CATALOGUES:
        yield f"Options: {', '.join(f'`{group}={one}`' for one in options)}.\n"
        return
    for option, (purpose, keys) in options.items():
        yield f"### {group}={option}\n\n{purpose}\n"
        own = [one for one in keys if one.meaning]
        yield from [*_keys(group, option, own), ""] if own else []
        if sets := [f"`{group}.{one.name}={one.value.replace(', ', ',')}`" for one in keys if not one.meaning]:
            yield f"Sets {', '.join(sets)}.\n"


def _keys(group: str, option: str, keys: list[ConfigKey]) -> list[str]:
    rows = [
        (f"`{group}.{one.name}={example_of(group, option, one)}`", *map(clean_markdown, (one.value, one.meaning)))
        for one in keys
    ]
    return table(("key and example", "default", "meaning"), rows, left=range(3), escaped=True)


def example_of(group: str, option: str, key: ConfigKey) -> str:
    """Return an instructive value of a key: that of its comment, else another choice of its type, or twice its number. Raises
    ValueError for a key that has neither."""
    if key.example:
        return key.example
    choices = [one for one in _choices(_type_of(group, option, key.name)) if one != key.value]
    if choices:
        return choices[0]
    try:
        twice = float(key.value) * 2
    except ValueError:
        twice = 0.0
    if not twice:
        raise ValueError(f"{group}={option}: {key.name} needs 'such as EXAMPLE' in its comment")
    minutes, seconds = divmod(twice, 60)
    time = f"{minutes:.0f}m" if minutes and not seconds else f"{twice:g}s"
    return time if key.name.endswith("_s") else f"{twice:g}"


def _type_of(group: str, option: str, name: str) -> Any:
    """Return the type of a key in the settings of an option."""
    found: Any = getattr(registry().kinds.get(group, {}).get(option), "settings_type", section_types()[group])
    for part in name.split("."):
        kinds = [one for one in (found, *get_args(found)) if hasattr(one, "__dataclass_fields__")]
        found = get_type_hints(kinds[0]).get(part) if kinds else None
    return found


def _choices(kind: Any) -> Iterator[str]:
    """Yield the values of a type that has few, as YAML writes them."""
    if kind is bool:
        yield from ("true", "false")
    elif get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    for one in get_args(kind) if get_origin(kind) is not Literal else ():
        yield from _choices(one)


def _files(group: str) -> Iterator[Path]:
    conf = conf_dir()
    yield from (conf / group).glob("*.yaml")
    yield from conf.parent.glob(f"plugins/*/src/*/conf/{group}/*.yaml")


def read_keys(text: str) -> tuple[str, list[ConfigKey]]:
    """Return what a config file is for (the comment at its top) and its keys, in the order written."""
    lines = text.splitlines()
    top = next((index for index, line in enumerate(lines) if not line.startswith("#")), len(lines))
    purpose = " ".join(line.lstrip("# ") for line in lines[:top])
    keys: list[ConfigKey] = []
    comment: list[str] = []
    parents: list[str] = []
    for line in lines[top:]:
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
        elif match := _KEY.match(line):
            indent, name, value, beside = match.groups()
            parents = [*parents[: len(indent) // 2], name]
            meaning = " ".join([*comment, *filter(None, [beside])])
            if meaning or (value and parents[0] not in UNLISTED):
                examples = _EXAMPLE.findall(meaning)
                example = re.sub(r"(?<=[:,]) ", "", examples[0]) if examples else ""
                meaning = _EXAMPLE.sub("", meaning, count=1).lstrip(";: ")
                keys.append(ConfigKey(".".join(parents), value or "", meaning, example))
            comment = []
        else:
            comment = []
    return purpose, keys


def column_reference() -> str:
    """Return the page of columns as Markdown."""
    sections = [
        "## points.csv and points.parquet\n\nOne row a point. points.csv ends with `schema_version`.\n",
        *_columns(PointRow),
        "\n## requests.parquet\n\nOne row a request, failed ones and those of the warm-up too.\n",
        *_columns(Record),
        "\n## sessions.csv\n\nOne row a session of each point, where the workload has jobs.\n",
        *_columns(SessionRow),
    ]
    return "\n".join([COLUMNS, *sections]) + "\n"


def _columns(row: type) -> list[str]:
    named, hints = {one.name: one for one in columns_of(row)}, get_type_hints(row)
    rows = []
    for name, one in named.items():
        if name.endswith("_high") and name.removesuffix("high") + "low" in named:
            continue  # in the row of the lower end
        both = name.endswith("_low") and name.removesuffix("low") + "high" in named
        names = f"`{name}`, `_high`" if both else f"`{name}`"
        meaning = one.description.replace("Lower end", "Ends") if both else one.description
        rows.append((names, one.kind + "?" * (type(None) in get_args(hints[name])), one.unit, meaning))
    return table(("column", "type", "unit", "meaning"), rows, left=range(4), escaped=True)


def warning_reference() -> str:
    """Return the page of warnings as Markdown."""
    head = ("code", "effect", "numbers", "meaning", "what to do")
    return "\n".join([WARNINGS, *table(head, map(_warning, CATALOG.values()), left=range(5), escaped=True)]) + "\n"


def _warning(one: WarningType) -> tuple[str, ...]:
    effect = "void" if one.void else "mark" if one.mark else "doubtful"
    groups = {AFFECTS_ALL: "all", SPEED: "all speeds", (): "none"}
    numbers = groups.get(one.affects) or ", ".join(one.affects)
    return f"`{one.code}`", effect, numbers, one.meaning, one.remedy


PAGES = {"config.md": config_reference, "columns.md": column_reference, "warnings.md": warning_reference}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
