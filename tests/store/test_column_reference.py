from pathlib import Path

from servebench.store.column_reference import column_reference

PAGE = Path(__file__).parents[2] / "docs" / "columns.md"


def test_the_page_of_columns_is_up_to_date():
    """Write it again with `python -m servebench.store.column_reference > docs/columns.md`."""
    assert PAGE.read_text() == column_reference()
