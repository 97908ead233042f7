"""Write numbers, tables and sections in Markdown, for docs/published.md."""

import textwrap
from collections.abc import Mapping, Sequence

WIDTH = 118


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; columns of numbers after the second are right-aligned."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def number(value: float | None, unit: str = "") -> str:
    """Return a number with three digits, or a dash."""
    if value is None:
        return "-"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def percent(share: float | None) -> str:
    """Return a signed percentage, or a dash."""
    return "-" if share is None else f"{100 * share:+.0f} %"


def page(title: str, parts: Mapping[str, str]) -> str:
    """Return a page of sections; prose is wrapped, tables are not."""
    bodies = [f"## {name}\n\n{_filled(body)}" if name else _filled(body) for name, body in parts.items()]
    return f"# {title}\n\n" + "\n\n".join(bodies) + "\n"


def _filled(body: str) -> str:
    paragraphs = body.split("\n\n")
    return "\n\n".join(
        one if one.startswith(("|", "#")) else textwrap.fill(one, WIDTH, break_long_words=False, break_on_hyphens=False)
        for one in paragraphs
    )
