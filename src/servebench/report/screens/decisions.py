"""What a study with `study.until=decided` has decided."""

from collections.abc import Iterator

from servebench.analysis.decided import StudyDecision
from servebench.analysis.verdict.model import EQUAL, FASTER, MIXED, SLOWER
from servebench.report.blocks import Block, Heading, Line, Table, TableColumn, items, row
from servebench.report.wording.decisions import HEADINGS, NOTE, cells_of, levels_line, notes_of, title_of

TONES = {FASTER: "good", SLOWER: "bad", EQUAL: "same", MIXED: "warn"}


def decision_blocks(found: StudyDecision) -> Iterator[Block]:
    """Yield a table for each pair of runs, what is still open, and how much starts differ."""
    columns = [TableColumn(name, left=name in ("metric", "verdict")) for name in HEADINGS]
    for pair in found.pairs:
        yield Heading(title_of(pair))
        rows = []
        for one in (*([pair.first] if pair.first is not None else []), *pair.rows):
            load, metric, verdict, *rest = cells_of(one, pair)
            rows.append(row(load, metric, Line.of(verdict, tone=TONES.get(one.result, "dim")), *rest))
        yield Table(columns, rows, ruled=True)
        yield Line.of(levels_line(pair), tone="strong")
    yield items(notes_of(found))
    yield Line.of(NOTE, tone="dim")
