"""Markdown text that shows untrusted text as it is."""

from collections.abc import Iterable, Sequence

from servebench.util.safe_text import clean_markdown


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, left: Sequence[int] = (0,), escaped: bool = False
) -> list[str]:
    """Return the lines of a table. Columns in `left` are aligned left, others right. Cells are escaped unless they are Markdown
    that is `escaped` already."""
    rule = "|".join("---" if index in left else "---:" for index in range(len(head)))
    body = (f"| {' | '.join(str(cell) if escaped else clean_markdown(cell) for cell in row)} |" for row in rows)
    return [f"| {' | '.join(head)} |", f"|{rule}|", *body]
