"""The text of what a study with `study.until=decided` has decided."""

from __future__ import annotations

from servebench.analysis.decided import StudyDecision
from servebench.analysis.verdict.model import EQUAL, NOT_COMPARED, NOT_WORSE, OPEN, SLOWER, Comparison, VerdictKind
from servebench.contracts.precision import LOOKS
from servebench.report.wording.comparison import description_of, shared_text, unequal_text
from servebench.util.figures import duration

WORDS = {EQUAL: "equal", OPEN: "open"}
"""What a verdict is called here, if not by its own name."""
GATE_WORDS = {
    NOT_WORSE: "passes, worse by no more than",
    SLOWER: "fails, worse by more than",
    OPEN: "not decided at",
    NOT_COMPARED: "cannot be judged at",
}


def round_line(found: StudyDecision, rounds: int) -> str:
    """Return what is decided and what is open after a round of starts."""
    undecided = [
        title_of(pair) + (f" (about {_more(needed - pair.starts_looked)})" if (needed := pair.starts_needed) else "")
        for pair in found.pairs
        if pair.open_levels
    ]
    rest = f"; open: {'; '.join(undecided)}" if undecided else ""
    done, count = len(found.pairs) - len(undecided), len(found.pairs)
    likely = " (likely at most: different settings)" if any(one.mattering for one in found.pairs) else ""
    return f"round {rounds}: {done} of {count} pairs decided{likely} after {_minutes(found)}{rest}"


def _more(starts: int) -> str:
    return f"{starts} more start{'s' * (starts > 1)} of each"


def rotation_line(each: int, levels: int) -> str:
    """Return which levels the starts after the first have."""
    return f"further starts have {each} of the {levels} levels each, in turn: more starts tell more than more levels of each"


def foreseen_line(limit: float, needed: int | None, known: int, each_s: float | None, budget_s: float) -> str:
    """Return what a gate will take: `needed` starts of each, by `known` earlier ones; one of each took `each_s` seconds."""
    what = f"gate: a limit of {100 * limit:g}%"
    if not known:
        return f"{what}, and no earlier starts that show how much they differ here: what it takes is said after two of each"
    by = f"by {known} earlier starts here"
    if needed is None:
        return f"{what} takes more starts than {LOOKS[-1]} of each, {by}; measure longer points (load.duration_s, load.until)"
    seconds = needed * (each_s or 0.0)
    about = f", about {duration(seconds)}" if seconds else ""
    return (
        f"{what} takes about {needed} starts of each{about}, {by}{'; the budget is too short' * (seconds > budget_s)}"
    )


def title_of(pair: Comparison) -> str:
    """Return what a pair of runs is called."""
    return f"{pair.candidate} vs {pair.baseline}"


def word_of(verdict: VerdictKind) -> str:
    """Return what a verdict is called."""
    return WORDS.get(verdict, str(verdict))


def standing_of(pair: Comparison) -> str:
    """Return what a gate has decided, or why a pair has no verdict."""
    if pair.mattering:
        return f"{'not judged: ' * (pair.gate is not None)}{unequal_text(pair.mattering)}"
    if pair.gate is None or pair.first is None or (pair.first.result is OPEN and pair.gate is OPEN):
        return "not decided"
    lost = [row for row in pair.regressions if abs(row.effect or 0.0) > pair.margin]
    largest = max(lost, key=lambda row: abs(row.effect or 0.0), default=pair.first)
    return f"{GATE_WORDS[pair.gate]} {100 * pair.margin:g}%: {description_of(largest)}"


def _minutes(found: StudyDecision) -> str:
    return f"{found.engine_s / 60:.1f} of {round(found.budget_s / 60, 1):,g} engine minutes"


def notes_of(found: StudyDecision) -> list[str]:
    """Return what is open and what it would take, and how long the engines ran."""
    lines = [line for pair in found.pairs for line in _open_lines(pair, found)]
    return [*lines, f"the engines ran for {_minutes(found)}"]


def _open_lines(pair: Comparison, found: StudyDecision) -> list[str]:
    if not pair.open_levels:
        return []
    starts, needed = pair.starts_looked, pair.starts_needed
    if needed is None or needed <= starts:
        more = "it would take very many more starts" if starts else "it has too few starts"
    else:
        minutes = (needed - starts) * sum(found.start_seconds.get(one, 0.0) for one in pair.ids) / 60
        more = f"would take about {_more(needed - starts)}, {max(1, round(minutes))} engine minutes"
    return [f"{title_of(pair)}: undecided: {more}{shared_text(pair)}"]
