from pathlib import Path

from servebench.analysis.warnings.reference import warning_reference

PAGE = Path(__file__).parents[3] / "docs" / "warnings.md"


def test_the_page_of_the_docs_is_this_one():
    """Write it again with `make reference`."""
    assert PAGE.read_text() == warning_reference()
