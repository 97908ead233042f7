"""The pages of the documentation that are written from the code."""

import importlib.util
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from servebench.config.keys import section_types
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
        assert f"| {key} |" in (ROOT / "docs" / "config.md").read_text().replace("`", "").replace("\\", "")


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


def test_a_name_with_a_meaning_is_a_key():
    assert reference.read_keys("# What for.\n\n# whose\nname: null\n")[1] == [
        reference.ConfigKey("name", "null", "whose")
    ]


LISTED = re.compile(r"^\| ([\w.]+) \| (.*?) \| (.*) \|$", re.M)
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
    """A key that is part of another may be explained there."""
    page = (ROOT / "docs" / "config.md").read_text().replace("\\", "").replace("`", "")
    documented = {}
    for key, _, meaning in LISTED.findall(page):
        documented.setdefault(key, []).append(meaning)
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
