"""The documentation as a whole: its pages, its size, and what its pages of failures promise."""

import re
from pathlib import Path

import yaml

from servebench.util.errors import FailureKind, ServebenchError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SECTIONS = ["Start", "How-to", "Reference", "Concepts", "Validation"]
WORDS_MAX = 35_000


def rows(page: str, section: str) -> list[str]:
    """The first cells of the table below a heading."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(section)[2]
    return re.findall(r"^\| ([^|]+?) \|", text.partition("\n\n#")[0].partition("\n|---")[2], re.MULTILINE)


def test_every_page_is_in_one_section():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert [name for part in nav for name in part] == SECTIONS
    listed = [path for part in nav for pages in part.values() for page in pages for path in page.values()]
    assert sorted(listed) == sorted(path.name for path in DOCS.glob("*.md"))


def test_the_pages_stay_readable():
    """A page that grows has to lose something else: signs of tables are not counted."""
    texts = [path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")]
    assert sum(bool(re.search(r"\w", word)) for text in texts for word in text.split()) <= WORDS_MAX
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


def test_contributing_names_places_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    places = re.findall(r"\b(?:src|tests|docs|conf|plugins)/[\w/.]*\w", text)
    assert len(places) > 5
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_every_exit_code_is_explained():
    codes = {0, 7, 141, ServebenchError.exit_code, *(kind.exit_code for kind in FailureKind)}
    assert codes == set(map(int, rows("failures.md", "## Exit codes")))


def test_advice_on_starts_names_kinds_of_failures():
    named = {
        name for cell in rows("not_started.md", "servebench resume --failed") for name in re.findall(r"`(\w+)`", cell)
    }
    assert named >= {"model_missing", "out_of_memory", "unknown_flag"}
    assert named <= set(FailureKind)
