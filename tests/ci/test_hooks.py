"""The hooks of pre-commit run what `make check` runs."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_a_commit_is_checked_as_by_make_check():
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["entry"] for hook in repo["hooks"]] == made


def test_templates_of_issues_ask_for_an_archive_of_the_study():
    forms = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]
    bodies = [form["body"] for form in forms if "body" in form]
    assert len(bodies) == 3
    for body in bodies:
        assert any("servebench bundle" in field["attributes"].get("description", "") for field in body)
