"""Markdown text that shows untrusted text as it is."""

import re
from collections.abc import Iterable, Sequence


def escape(text: object) -> str:
    """Return text that cannot format anything or break out of a table cell."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", str(text)).replace("\n", " ")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, left: Sequence[int] = (0,)) -> list[str]:
    """Return the lines of a table. Cells are escaped; columns in `left` are aligned left, others right."""
    rule = "|".join("---" if index in left else "---:" for index in range(len(head)))
    body = (f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows)
    return [f"| {' | '.join(head)} |", f"|{rule}|", *body]
