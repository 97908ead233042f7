"""One version: that of the package, of its citation, of the newest release in the changelog, and of a tag on this commit."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def released():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_changelog_and_citation_have_the_version_and_its_date():
    """The newest release is the first one with a date."""
    version, day = re.search(r"^## (\d\S*) - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.M).groups()
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (version, version, day) == (released(), cited["version"], str(cited["date-released"]))


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a clone")
def test_a_tag_of_this_commit_is_its_version():
    tags = subprocess.run(
        ["git", "tag", "--points-at", "HEAD", "v*"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(tags.stdout.split()) <= {f"v{released()}"}
