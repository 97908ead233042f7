"""Settings in every form: what the schema accepts of each key, and what nobody should write.

The cases follow from the settings' dataclasses, so that a new key is tried without a line here.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from servebench.config.keys import section_types
from servebench.contracts.settings import LengthSettings
from servebench.registry.registry import registry

BASE = (
    *("engine=vllm", "launch=simulated", "gpu=h100", "model=llama-3.1-8b-instruct", "load=quick", "workload=short"),
    *("load.concurrency=[2]", "load.until=null", "load.requests=20", "tracking=none", "quality=none"),
)
"""A study of one point that takes no time: 20 requests on a virtual clock."""

UNICODE = "é漢🙂"
WRONG = (
    *("null", "true", "x", "''", "'8'", "0", "-1", "1", "1e3", "1e9", "1e308", "nan", "inf", "[]", "[1]", "['']", "{}"),
    *(
        "{a: 1}",
        "[{a: 1}]",
        "[null]",
        "[[1]]",
        UNICODE,
        "'a b'",
        "a" * 5000,
        "${load.name}",
        "'${nope}'",
        "'???'",
        "1,2",
    ),
    *("{kind: uniform}", "{kind: fixed, mean: 8}", "9" * 400, "'\\x00'"),
)
"""Values that few keys take."""
LENGTHS = (
    *("{kind: fixed, mean: 24}", "{mean: 24}", "{kind: uniform, min: 20, max: 24}", "{kind: uniform}"),
    *("{min: 24, max: 8}", "{kind: uniform, min: 24, max: 8}", "{kind: normal, mean: 24, stdev: 4}"),
    *("{kind: normal, mean: 24, stdev: 4, min: 20, max: 40}", "{kind: normal, mean: 4, min: 9, max: 2}"),
    *("{kind: lognormal, mean: 24, stdev: 8}", "{kind: lognormal, mean: 24}", "{kind: fixed, mean: 24, stdev: 3}"),
    *("{kind: uniform, min: 20, max: 24, mean: 9}", "{kind: normal, mean: 400, stdev: 0, min: 400, max: 32}"),
    *("{kind: lognormal, mean: 24, stdev: 1e7}", "{kind: normal, mean: 1e-9, stdev: 1}", "{kind: zipf}", "{mean: nan}"),
    *("{kind: fixed}", "{kind: null}", "{kind: uniform, min: 1, max: 10000000}", "{kind: fixed, mean: 1e7}"),
)


@dataclass(frozen=True)
class Ending:
    """How a command ended in this process; `code` is None for a traceback."""

    code: int | None
    out: str
    err: str


def command(*words: str) -> Ending:
    """Run a command in this process."""
    from servebench.cli.main import main

    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["servebench", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code: int | None = main()
    except Exception:  # noqa: BLE001 - what this looks for
        return Ending(None, out.getvalue(), err.getvalue() + traceback.format_exc())
    finally:
        sys.argv = before
    return Ending(code, out.getvalue(), err.getvalue())


def sections() -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield the path of each group of keys, the words that choose it, and its dataclass."""
    kinds = registry().kinds
    for section, kind in section_types().items():
        if section == "workload":
            for name, found in kinds["workload"].items():
                yield section, (f"workload={name}",), found.settings_type
        elif section == "load":
            yield section, (), kind
            yield section, ("load=rate", "load.rate=[20]", "load.concurrency=null"), kind
            yield section, ("load=replay", "workload=trace", "load.concurrency=null"), kind
            yield section, ("load=slo", "slo=interactive", "load.concurrency=null", "load.search.upper=8"), kind
        elif section == "launch":
            yield section, (), kinds["launch"]["simulated"].settings_type
        elif section == "engine":
            for name in ("vllm", "sglang", "trtllm"):
                yield section, (f"engine={name}",), kinds["engine"][name].settings_type
        elif section == "quality":
            yield section, (), kind
            yield section, ("quality=json", "workload=structured_json"), kind
        else:
            yield section, (), kind


def forms(hint: Any) -> Iterator[str]:
    """Yield values that a type hint allows, as they are written in an override."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is LengthSettings:
        yield from LENGTHS
    elif isinstance(hint, type) and is_dataclass(hint):
        needed = [one for one in fields(hint) if one.default is MISSING and one.default_factory is MISSING]
        hints = get_type_hints(hint, include_extras=True)
        yield "{" + ", ".join(f"{one.name}: {next(forms(hints[one.name]))}" for one in needed) + "}"
    elif origin in (Union, UnionType):
        for one in arguments:
            yield from forms(one)
    elif origin is Literal:
        yield from (str(one) for one in arguments)
    elif hint is NoneType:
        yield "null"
    elif hint is bool:
        yield from ("true", "false")
    elif hasattr(hint, "__metadata__"):
        bounds = [
            getattr(mark, name)
            for mark in hint.__metadata__
            for name in ("ge", "gt", "le", "lt")
            if hasattr(mark, name)
        ]
        yield from forms(hint.__origin__)
        yield from (str(bound) for bound in bounds)
    elif hint is int:
        yield from ("1", "3")
    elif hint is float:
        yield from ("0.5", "2")
    elif hint is str:
        yield from ("abc", UNICODE, "'a b'", "a" * 300)
    elif origin is tuple:
        for one in forms(arguments[0]):
            yield f"[{one}]"
        yield "[]"
    elif origin is not None and issubclass(origin, Mapping):
        yield from ("{}", "{a: 1}", "{unique: {weight: 1}}", "{output_throughput_tok_s: 20%}")


def keys(kind: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a dataclass, with their type hints."""
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        yield f"{path}.{one.name}", hints[one.name]
        for inner in get_args(hints[one.name]):
            if isinstance(inner, type) and is_dataclass(inner):
                yield from keys(inner, f"{path}.{one.name}")


def cases() -> Iterator[tuple[str, ...]]:
    """Yield the words of each case, to follow those of BASE: each key in each form, and once with everything wrong."""
    tried: set[str] = set()
    for section, chosen, kind in sections():
        for key, hint in keys(kind, section):
            texts = [f"{key}={value}" for value in dict.fromkeys(forms(hint))]
            if key not in tried:
                tried.add(key)
                texts += [f"{key}={value}" for value in WRONG]
                texts += [f"~{key}", f"+{key}=1", f"{key}.foo=1", f"{key[:-1]}=1"]
            yield from ((*chosen, text) for text in dict.fromkeys(texts))


def pairs(rng: random.Random) -> Iterator[tuple[str, ...]]:
    """Yield cases that set two keys, without an end; the options of the first are those of both."""
    every = list(cases())
    while True:
        first, second = rng.sample(every, 2)
        yield (*first, second[-1])


ODD = (
    "",
    "0",
    "-1",
    "1e3",
    "nan",
    "inf",
    "x",
    UNICODE,
    "a" * 300,
    "../..",
    "/",
    "[2]",
    "*",
    "last",
    "last~9",
    "engine.*",
    "50%",
)
FLAGS = (
    *(("compare", "last", flag) for flag in ("--baseline", "--max-regression", "--margin", "--varying")),
    *(("compare", "last", "base", flag) for flag in ("--varying", "--margin")),
    *(("recommend", "last", flag) for flag in ("--rules", "--varying")),
    *(("report", "last", flag) for flag in ("--as", "--rules", "--varying")),
    *(("show", "last", "--request"), ("export", "last", "--format"), ("import", "--tool")),
    *(("resume", "last", "--budget"), ("tune", "engine=vllm", "--objective")),
    *(
        (name,)
        for name in ("show", "ls", "compare", "recommend", "report", "export", "import", "resume", "sync", "recover")
    ),
)
"""Commands that want one value more."""


def flags() -> Iterator[tuple[str, ...]]:
    """Yield commands on stored studies with odd values."""
    for words in FLAGS:
        for value in ODD:
            yield (*words, value)
    for condition in ("load.concurrency", "engine", "status", "engine.dtype", "workload.output_tokens"):
        for value in ODD:
            yield ("ls", f"{condition}={value}")
