"""Blocks as Markdown, for pull requests and chat."""

from collections.abc import Iterable, Sequence

from servebench.report.blocks import Block, Command, Gap, Heading, Line, Table
from servebench.util.safe_text import clean_markdown, markdown_code


def to_markdown(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown that shows untrusted text as it is; charts are in the HTML report only."""
    lines: list[str] = []
    for block in blocks:
        match block:
            case Heading():
                lines += [f"### {clean_markdown(block.text)}", *([clean_markdown(block.note)] if block.note else [])]
            case Line():
                lines.append(_inline(block))
            case Table():
                head = [clean_markdown(one.title) for one in block.columns]
                left = [index for index, one in enumerate(block.columns) if one.left]
                cells = [[_inline(cell) for cell in cells] for cells in block.rows]
                lines.append("\n".join(table(head, cells, left=left, escaped=True)))
            case Command():
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
    for span in line.spans:
        text = clean_markdown(span.text)
        if text and "strong" in span.tone.split():
            text = f"**{text}**"
        parts.append(f"{' ' * span.text.startswith(' ')}{text}{' ' * span.text.endswith(' ')}")
    return "".join(parts).strip()
