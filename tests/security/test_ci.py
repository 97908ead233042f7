"""What CI runs of others is named by its content, not by a tag that can move."""

import re
from pathlib import Path

import yaml

WORKFLOWS = Path(__file__).parents[2] / ".github" / "workflows"


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
