"""What the types of warnings say, and that nothing else says it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import servebench
from servebench.analysis.warnings import catalog
from servebench.analysis.warnings.catalog import AFFECTS_ALL, CATALOG, WarningType, is_usable, is_wide, type_of
from servebench.contracts.point_row import PointRow

SOURCE = Path(servebench.__file__).parent
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
WORDS = {"errors", "interrupted", "emulated", "foreign", "not_judged", "unanswered", "unequal_settings", "lock_step"}
"""Codes that are also the names of something else: a status, a column, a result."""
STOPS = {"engine_died", "worker_died", "no_progress", "not_answering"}
"""Codes that are also reasons for the end of a phase (`StopReason`)."""


@pytest.mark.parametrize("kind", CATALOG.values(), ids=list(CATALOG))
def test_a_type_says_what_it_is_and_what_follows_from_it(kind: WarningType) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code)
    assert kind.meaning
    assert kind.remedy or kind.mark
    assert set(kind.affects) <= {*AFFECTS_ALL, "quality"}
    # a mark leaves the verdict alone, and only a mark may say more on the first screen than that
    assert not (kind.mark and (kind.void or kind.unusable or kind.longer or kind.bound))
    assert kind.mark or not (kind.wide or kind.leaves_out or kind.of_all)
    # what was cut off says nothing, and is measured again whether a longer measurement helps or not
    assert not kind.cut_off or (kind.unusable and not kind.longer)
    assert kind.cut_off or not kind.engine_gone
    if kind.bound is not None:
        assert all(kind.bound(PointRow(), part) in (None, 0.0) for part in kind.affects)


def test_every_warning_that_is_issued_is_in_the_catalog() -> None:
    """All are made by `issue` of a type: nothing else makes a `Doubt`."""
    made = {
        path.relative_to(SOURCE).as_posix()
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Doubt"
    }
    assert made == {"analysis/warnings/catalog.py"}
    issued = {
        name.attr if isinstance(name, ast.Attribute) else name.id
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "issue"
        and isinstance(name := node.value, (ast.Attribute, ast.Name))
    }
    assert {name for name in issued if name.isupper()} == {kind.code.upper() for kind in CATALOG.values()} - {
        "UNEQUAL_SETTINGS"
    }
    assert all(getattr(catalog, name) is CATALOG[name.lower()] for name in issued if name.isupper())


def test_nothing_else_names_a_code() -> None:
    """What follows from a warning is a field of its type, not a list of codes somewhere else."""
    named = {
        (path.relative_to(SOURCE).as_posix(), node.value)
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in CATALOG and node.value not in WORDS
    }
    of_pydantic = {("config/validate.py", "too_short")}
    assert {pair for pair in named if pair[0] != "analysis/warnings/catalog.py"} - of_pydantic == {
        ("contracts/exchange.py", code) for code in STOPS
    }


def test_a_code_of_another_version_may_concern_everything() -> None:
    kind = type_of("from_the_future")
    assert kind.affects == AFFECTS_ALL
    assert (kind.mark, kind.void, kind.bound) == (False, False, None)
    assert not is_wide(["from_the_future"])
    assert is_usable(["from_the_future", "errors"])
    assert not is_usable(["errors", "clock_stepped"])
