"""Comparisons, pair by pair or in brief, the gate on them, and what a study with `study.until=decided` has decided."""

from collections.abc import Iterator
from dataclasses import replace

from servebench.analysis.answer.model import Answer
from servebench.analysis.decided import StudyDecision
from servebench.analysis.verdict.gate import Gate
from servebench.analysis.verdict.model import Comparison
from servebench.report.blocks import Block, Fold, Heading, Label, Line, Span, items, table
from servebench.report.screens.answer import answer_blocks
from servebench.report.wording import comparison as wording
from servebench.report.wording import decisions

TONES = {"faster": "good", "slower": "bad", "no difference": "same", "mixed": "warn"}
TONES |= {"not worse": "same", "unequal_settings": "warn"}
AGREEMENT_TONES = {"different": "bad", "not different": "same", "too small to tell": "warn"}
PARITY_TONES = {"the same": "good", "no more than itself": "same", "more than itself": "bad"}

NAMED_MAX = 3
"""More pairs without a verdict are only counted."""


def comparison_blocks(comparison: Comparison, *, opened: bool = True) -> Iterator[Block]:
    """Yield the verdict, the rows, the unequal settings, and the comparison of the answers. A page folds the rows unless they are
    `opened`."""
    yield Heading(f"{comparison.candidate}  vs  {comparison.baseline}")
    tone = TONES.get(comparison.result, "")
    yield Line.of(Label("verdict", f"strong {tone}"), f": {wording.summary_of(comparison)}", tone=f"strong {tone}")
    yield Fold("each metric and load", list(_rows(comparison)), opened=opened)
    for one in comparison.agreements:
        yield Line.of(f"quality: {wording.agreement_text(one.swapped())}", tone=AGREEMENT_TONES.get(one.finding, "dim"))
    for parity in comparison.parities:
        text = f"parity at {parity.at}: {wording.parity_text(parity)}"
        yield Line.of(text, tone=PARITY_TONES.get(parity.finding, "warn"))


def _rows(comparison: Comparison) -> Iterator[Block]:
    notes = wording.reason_numbers(comparison)
    rows: list[list[str | Line]] = []
    for one in wording.shown_rows(comparison):
        *cells, verdict = wording.cells_of(one)
        mark = f" ({notes[reason]})" if (reason := wording.reason_of(one)) else ""
        tone = TONES.get(one.result, "dim") if one.competes else "dim"
        rows.append([*cells, Line.of(Label(verdict, tone), Span(mark, "dim"))])
    yield table(wording.HEADINGS, rows, left=(), wrap=(1, 5), caption="Each metric and load")
    for reason, number in notes.items():
        yield Line.of(f"({number}) {reason}", tone="dim")
    if note := wording.starts_note(comparison):
        yield Line.of(note, tone="dim")
    for unequal in comparison.unequal:
        if unequal.matters:
            text = f"{unequal.name}: {unequal.candidate} vs {unequal.baseline} ({unequal.reason})"
            yield Line.of(f"different setting: {text}", tone="warn")
    if minor := [one.key for one in comparison.unequal if not one.matters]:
        yield Line.of(f"intended or harmless differences: {', '.join(minor)}", tone="dim")


def pairs_blocks(answer: Answer, *, width: int) -> Iterator[Block]:
    """Yield several pairs in brief: the table and the answer of each workload, and the verdicts of pairs that have one."""
    yield from answer_blocks(replace(answer, remarks=(), next_steps=()), width=width)
    undecided = []
    for one in answer.comparisons:
        if one.result == "not enough data":
            undecided.append(f"{one.candidate} vs {one.baseline}")
        else:
            yield Line.of(
                f"{one.candidate} vs {one.baseline}: {wording.summary_of(one)}", tone=TONES.get(one.result, "dim")
            )
    if undecided:
        more = f", and {len(undecided) - NAMED_MAX} more pairs" if len(undecided) > NAMED_MAX else ""
        yield Line.of(f"not decided: {', '.join(undecided[:NAMED_MAX])}{more}", tone="dim")
    yield Line.of("all metrics of each pair: -v", tone="dim")


def gate_blocks(gate: Gate, *, reasons: bool = True) -> Iterator[Block]:
    """Yield whether the gate lets pass, why not unless `reasons` are said elsewhere, and what it does not judge."""
    result = "failed" if gate.failed else "not decided" if gate.undecided else "passed"
    tone = {"failed": "bad", "passed": "good"}.get(result, "warn")
    yield Line.of("Gate: ", Span(result, f"strong {tone}"), f" ({wording.gate_scope(gate)})")
    if reasons:
        failures = wording.gate_failures(gate) or [
            f"{candidate}: {why}" for candidate, why in wording.gate_undecided(gate)
        ]
        yield from (Line.of(one) for one in failures)
    yield from (Line.of(f"not judged: {one}", tone="dim") for one in wording.gate_not_judged(gate))


def decision_blocks(found: StudyDecision) -> Iterator[Block]:
    """Yield the verdicts of a gate, and which pairs of runs are open: comparisons and the answer have the other verdicts."""
    for pair in found.pairs:
        if pair.answered and pair.gate is None:
            continue
        tone = TONES.get(pair.gate or pair.first.result, "") if pair.first is not None else ""
        yield Line.of(Span(f"{decisions.title_of(pair)}: ", "strong"), Span(decisions.standing_of(pair), tone))
    yield items(decisions.notes_of(found))
