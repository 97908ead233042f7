"""Every link between the pages of the repository leads to a file and a heading that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/*/README.md")])
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?)$", re.MULTILINE)
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
HERE = "https://github.com/servebench/servebench-suite/blob/main/"
"""How pages of the site link to files that are not part of it."""


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(text))
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere in the repository."""
    found = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.removeprefix(HERE).partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (ROOT / path if link.startswith(HERE) else page.parent / path) if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_links_lead_somewhere(page):
    assert broken(page) == []


def test_a_page_of_the_site_links_to_other_files_by_address():
    """The site has the files of docs/ only."""
    for page in (ROOT / "docs").glob("*.md"):
        assert "](../" not in page.read_text(encoding="utf-8"), page.name


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("# One `two`, three\n[a](#one-two-three) [b](#four) [c](gone.md) [d](https://example.org/x)\n")
    assert broken(page) == ["#four", "gone.md"]
