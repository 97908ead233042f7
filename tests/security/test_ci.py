"""What CI runs of others is named by its content, not by a tag that can move; dependencies have bounds and tested versions."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


def test_actions_are_pinned_by_commit():
    steps = [
        step["uses"]
        for path in WORKFLOWS.glob("*.y*ml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "uses" in step
    ]
    assert steps
    assert [step for step in steps if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step)] == []


def requirements():
    for path in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")):
        document = tomllib.loads(path.read_text())
        project = document["project"]
        groups = [document["build-system"]["requires"], project.get("dependencies", [])]
        for group in (*groups, *project.get("optional-dependencies", {}).values()):
            yield from map(Requirement, group)


def test_every_dependency_has_bounds_and_is_within_them_in_what_was_tested():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+!]+", line) for line in lines)
    tested = dict(line.split("==") for line in lines)
    found = list(requirements())
    assert len(found) > 40
    for one in found:
        kinds = {part.operator for part in one.specifier}
        assert kinds & {"<", "<=", "==", "~="}, one
        assert kinds & {">=", "==", "~="}, one
        version = tested.get(canonicalize_name(one.name))
        assert version is None or version in one.specifier, (one, version)
    direct = {
        canonicalize_name(one.name)
        for one in map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    }
    assert direct <= set(tested)
