"""Blocks as Markdown, for pull requests and chat."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from servebench.report.blocks import Block, Gap, Heading, Items, Line, NextCommand, Table, plain
from servebench.util.safe_text import clean_markdown, markdown_code


def to_markdown(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown that shows untrusted text as it is; charts are in the HTML report only."""
    lines: list[str] = []
    for block in plain(blocks):
        match block:
            case Heading():
                lines += [f"{'#' * block.level} {clean_markdown(block.text)}", clean_markdown(block.note)]
            case Line():
                lines.append(_inline(block))
            case Items():
                lines.append("\n".join(f"- {_inline(one)}" for one in block.lines))
            case Table():
                head = [clean_markdown(one.title) for one in block.columns]
                left = [index for index, one in enumerate(block.columns) if one.left]
                cells = [[_inline(cell) for cell in cells] for cells in block.rows]
                lines.append("\n".join(table(head, cells, left=left, escaped=True)))
            case NextCommand():
                reason = f" ({clean_markdown(block.reason)})" if block.reason else ""
                lines.append(f"{clean_markdown(block.kind)}: {markdown_code(block.command)}{reason}")
            case Gap():
                pass
    return "\n\n".join(filter(None, lines)) + "\n"


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, left: Sequence[int] = (0,), escaped: bool = False
) -> list[str]:
    """Return the lines of a table. Columns in `left` are aligned left, others right. Cells are escaped unless they are Markdown
    that is `escaped` already."""
    rule = "|".join("---" if index in left else "---:" for index in range(len(head)))
    body = (f"| {' | '.join(str(cell) if escaped else clean_markdown(cell) for cell in row)} |" for row in rows)
    return [f"| {' | '.join(head)} |", f"|{rule}|", *body]


def _inline(line: Line) -> str:
    """A line with what is strong in it in bold; the other tones repeat what the text says."""
    parts = []
    for strong, spans in groupby(line.spans, key=lambda span: "strong" in span.tone.split()):
        whole = "".join(span.text for span in spans)
        text = clean_markdown(whole)
        text = f"**{text}**" if text and strong else text
        parts.append(f"{' ' * whole.startswith(' ')}{text}{' ' * whole.endswith(' ')}")
    return "".join(parts).strip()
