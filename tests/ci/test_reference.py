"""The pages of the documentation that are written from the code."""

import importlib.util
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from servebench.config.composition import check_job, compose_job, expand
from servebench.config.folders import composer
from servebench.config.keys import section_types
from servebench.config.overrides import parse, parse_arguments
from servebench.config.tune_space import parse_question
from servebench.contracts.settings import LengthSettings
from servebench.registry.registry import registry

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("reference", ROOT / ".ci" / "reference.py")
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_up_to_date(name):
    """Write it again with `make reference`."""
    assert (ROOT / "docs" / name).read_text() == reference.PAGES[name]()


def test_it_has_the_own_keys_of_engines():
    for key in ("engine.gpu_layers", "engine.continuous_batching", "load.search.tolerance", "study.starts"):
        assert f"| `{key}=" in (ROOT / "docs" / "config.md").read_text()


def test_a_key_has_the_comment_above_it():
    purpose, keys = reference.read_keys(
        "# What for.\ndefaults:\n  - base\n\nname: a\n# one\n# two\nx: 1\ny: null  # beside\nz:\n  # of z\n  w: {}\n"
    )
    assert purpose == "What for."
    assert keys == [
        reference.ConfigKey("x", "1", "one two"),
        reference.ConfigKey("y", "null", "beside"),
        reference.ConfigKey("z.w", "{}", "of z"),
    ]


@pytest.mark.parametrize(
    ("meaning", "example", "left"),
    [
        ("as it is, such as api-key (Azure); null: no", "api-key", "as it is (Azure); null: no"),
        ("such as 8000; 0: any free one", "8000", "0: any free one"),
        ("fields, such as {a: {b: false}, c: low}", "{a:{b:false},c:low}", "fields"),
        ("where, such as http://host:8000/v1", "http://host:8000/v1", "where"),
        ("share, such as 0.5: half of it", "0.5", "share: half of it"),
    ],
)
def test_an_example_is_taken_out_of_the_meaning(meaning, example, left):
    assert reference.read_keys(f"# What for.\n\n# {meaning}\nx: 1\n")[1] == [
        reference.ConfigKey("x", "1", left, example)
    ]


@pytest.mark.parametrize(
    ("group", "option", "key", "example"),
    [
        ("load", "", reference.ConfigKey("stagger", "true", ""), "false"),
        ("load", "", reference.ConfigKey("arrival", "poisson", ""), "constant"),
        ("load", "", reference.ConfigKey("timeout_s", "600.0", ""), "20m"),
        ("load", "slo", reference.ConfigKey("search.of", "concurrency", ""), "rate"),
        ("engine", "trtllm", reference.ConfigKey("backend", "pytorch", ""), "tensorrt"),
    ],
)
def test_an_example_is_derived_from_type_and_default(group, option, key, example):
    assert reference.example_of(group, option, key) == example


def test_a_key_without_an_example_is_an_error():
    with pytest.raises(ValueError, match="such as"):
        reference.example_of("load", "", reference.ConfigKey("rate", "null", "requests a second"))


def problems_of(words):
    """The problems of jobs that do not come from a combination of settings."""
    known = registry()
    with composer(known) as source:
        overrides, problems = parse(parse_arguments(words).overrides)
        jobs, more = expand(source, known, overrides, multirun=True)
        problems = [*problems, *more]
        for job in jobs:
            problems += check_job(source, known, compose_job(source, known, job)).problems
    return [one.text for one in problems if one.kind != "combination"]


@pytest.mark.parametrize("group", reference.GROUPS)
def test_every_example_is_valid(group):
    for option, (_, keys) in reference.options_of(group).items():
        shown = [] if option and group in reference.CATALOGUES else [one for one in keys if one.meaning]
        examples = [f"{group}.{one.name}={reference.example_of(group, option, one)}" for one in shown]
        assert problems_of([*([f"{group}={option}"] if option else []), *examples]) == []


def test_the_most_used_words_are_valid():
    words = [line.split("  # ")[0] for line in reference.MOST_USED.strip().splitlines()]
    assert len(words) >= 25
    needs = {"launch.api_key_env": "launch=attach"}  # pragma: allowlist secret
    for word in words:
        assert problems_of([word, *filter(None, [needs.get(word.partition("=")[0])])]) == []


def test_every_key_of_a_tune_has_a_valid_example():
    page = (ROOT / "docs" / "tune.md").read_text()
    words = re.findall(r"^\| (`tune\..*?`) \|", page, re.M)
    examples = [word for cell in words for word in re.findall("`(tune.*?)`", cell)]
    assert {one.name for one in fields(parse_question(examples))} == {one[5:].partition("=")[0] for one in examples}


def test_a_name_with_a_meaning_is_a_key():
    assert reference.read_keys("# What for.\n\n# whose\nname: null\n")[1] == [
        reference.ConfigKey("name", "null", "whose")
    ]


LISTED = re.compile(r"^\| ([\w.]+)=(\S.*?) \| .*? \| (.*) \|$", re.M)
UNITS = re.compile(
    r"_(s|ms|gb|gb_s|tflops|b|tokens|usd\w*|sd|seed|fraction|share|percent)$|"
    r"\b(seconds|tokens|requests|shares?|times|how (many|often|much)|port|percentage points|a second|relative|factor|"
    r"multiplies|standard deviation|temperature|words|processes|confidence|popularity|grades|starts|heads|layers|"
    r"exponent|number of|pixels|\d+[smh]|"
    r"numbers|of sampling|seed|streams|level|steps|0:|N-th)\b"
)


def keys_of(kind, prefix):
    """Yield each key of a class of settings, its type, and the keys that hold it."""
    hints = get_type_hints(kind)
    for one in fields(kind):
        inner = [found for found in dataclasses_in(hints[one.name]) if found is not LengthSettings]
        yield f"{prefix}.{one.name}", hints[one.name], bool(inner)
        for nested in inner:
            yield from keys_of(nested, f"{prefix}.{one.name}")


def all_keys():
    sections, kinds = section_types(), registry().kinds
    for group, kind in sections.items():
        yield from keys_of(kind, group)
        for one in kinds.get(group, {}).values():
            if is_dataclass(found := getattr(one, "settings_type", None)):
                yield from keys_of(found, group)


def dataclasses_in(hint):
    if isinstance(hint, type):
        return [hint] if is_dataclass(hint) else []
    return [found for one in get_args(hint) for found in dataclasses_in(one)]


def is_number(hint):
    return hint in (int, float) or any(is_number(one) for one in get_args(hint))


def says_more(meaning, key):
    """Whether a meaning has two words that are not those of the key."""
    own = {word.rstrip("s") for word in re.split(r"[._]", f"{key}.the.of.an.is.it")}
    words = {word.rstrip("s") for word in re.findall(r"[a-z0-9]{2,}", meaning.lower())}
    return len(words - own) >= 2


def test_every_key_has_a_meaning_and_every_number_a_unit():
    """A key that is part of another may be explained there, by its example too."""
    page = (ROOT / "docs" / "config.md").read_text().replace("\\", "").replace("`", "")
    documented = {}
    for key, example, meaning in LISTED.findall(page):
        documented.setdefault(key, []).append(f"{meaning} {example}")
    missing, unitless = set(), set()
    for key, hint, _ in all_keys():
        if any(one.startswith(f"{key}.") for one in documented) and key not in documented:
            continue
        if key.endswith(".name") and key.partition(".")[0] not in ("model", "study"):
            continue
        parent, _, leaf = key.rpartition(".")
        meanings = documented.get(key) or [one for one in documented.get(parent, ()) if re.search(rf"\b{leaf}\b", one)]
        if not any(says_more(one, key) for one in meanings):
            missing.add(key)
        elif is_number(hint) and not any(UNITS.search(f"{key} {one}") for one in meanings) and not UNITS.search(key):
            unitless.add(key)
    assert (sorted(missing), sorted(unitless)) == ([], [])
