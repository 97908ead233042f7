"""The text of a tune's answer, for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from servebench.analysis.answer.model import Caveat, CaveatKind
from servebench.analysis.tuning.answer import AGAIN_STARTS, ChangeKind, Tried, TuneAnswer, WouldChange
from servebench.analysis.tuning.candidates import describe_settings
from servebench.analysis.tuning.ledger import Left
from servebench.analysis.verdict.model import Difference
from servebench.report.wording.answer import caveat_text
from servebench.report.wording.comparison import method_text
from servebench.util.figures import MISSING, change, change_interval, number, percent

CHANGES: Mapping[ChangeKind, Callable[[WouldChange], str]] = {
    ChangeKind.OTHER_LOAD: lambda one: f"another load: the objective counts at {_levels(one.levels)} only",
    ChangeKind.HIGHER_LEVELS: lambda one: (
        f"higher levels: the best candidate meets the SLO at {_levels(one.levels)}, the highest that was measured"
    ),
    ChangeKind.MORE_BUDGET: lambda one: f"more budget: {one.count} of {one.of} candidates were not tried",
    ChangeKind.MORE_STARTS: lambda one: (
        f"more starts: {', '.join(one.names[:NAMED_MAX])} may be as good, though not in the finals"
    ),
    ChangeKind.SMALL_GAIN: lambda _: "more starts: the gain over stock is smaller than what starts differ by",
    ChangeKind.SMALLER_VALUES: lambda one: f"values beyond {'='.join(one.names)}, the smallest that was offered",
    ChangeKind.LARGER_VALUES: lambda one: f"values beyond {'='.join(one.names)}, the largest that was offered",
}
NAMED_MAX = 4
HEADINGS = ("candidate", "starts", "value", "from stock [95%]", "TTFT p50", "how it ended")


def _levels(levels: Iterable[float]) -> str:
    return ", ".join(f"{one:g}" for one in levels)


def headline(answer: TuneAnswer) -> str:
    """Return the answer in one sentence."""
    settings = describe_settings(answer.settings) if answer.settings else "its stock settings"
    least = number(answer.cost(answer.least_budget))
    gain, margin = gain_text(answer.gain) or "an unknown gain", percent(answer.question.share("margin"))
    return {
        "better": f"{answer.best_name} is best: {settings}; {gain} over stock",
        "open": f"{answer.best_name} looks best: {settings}; {gain} over stock, which is not proven",
        "as good": f"stock is as good: the best other settings ({settings}) gain {gain}, too little to matter and not proven",
        "stock": f"stock is as good: no other settings were better by more than {margin}",
        "too little": f"the budget is too small: a comparison of one candidate with stock needs about {least} {answer.unit}",
        "none": "nobody won: no candidate could be measured or met the limits",
    }[answer.verdict]


def gain_text(found: Difference | None) -> str:
    """Return a gain with its interval; empty for none."""
    return f"{change(found.effect)} {change_interval(found.low, found.high)}" if found is not None else ""


def best_lines(answer: TuneAnswer) -> list[str]:
    """Return the best candidate's value beside that of stock, with the question; what a new measurement will show, and what the
    gain rests on where engines took turns (elsewhere FROM_STOCK_NOTE says it); and why the best candidate is not the one with the
    highest estimate, where it is not."""
    objective, margin = answer.objective, percent(answer.question.share("margin"))
    stock = f"stock {number(answer.stock_value)} {objective.unit}"
    value = f"{answer.best_name} {number(answer.value)} {objective.unit}, {stock}" if answer.settings else stock
    asked = (
        f"{'highest' if objective.higher else 'lowest'} {objective.name} ({objective.unit}) at {_levels(answer.levels)}"
    )
    lines = [f"{value}; asked: {asked}; settings within {margin} count as equal"]
    if answer.gain is not None and answer.again is not None and answer.verdict in ("better", "open"):
        ends, method = change_interval(answer.again.low, answer.again.high), answer.gain.method
        new = f"{AGAIN_STARTS} new starts of each will show {ends} in 95 of 100 cases, unless one is a slow start"
        lines.append(f"{new}; the gain is by {method_text(method)}" if method.slice_by_slice else new)
    if answer.equals:
        more = f"{', '.join(answer.equals)} measured more, by less than {margin}"
        lines.append(f"{answer.best_name} is nearest to the stock settings among equals: {more}")
    return lines


def spent_line(answer: TuneAnswer) -> str:
    """Return what was spent."""
    spent, budget = (number(answer.cost(one)) for one in (answer.spent, answer.budget))
    tried = sum(one.blocks > 0 for one in answer.tried)
    return (
        f"spent {spent} of {budget} {answer.unit} on {tried} of {len(answer.tried)} candidates; the whole space has "
        f"{answer.space_size:,} settings"
    )


def contribution_lines(answer: TuneAnswer) -> list[str]:
    """Return what each setting of the best candidate contributes."""
    return [
        f"{one.key}: {one.before} -> {one.after}: {gain_text(one.gain) or NOT_MEASURED}" for one in answer.contributions
    ]


def cells_of(one: Tried) -> tuple[str, ...]:
    """Return the cells of a candidate under HEADINGS."""
    starts, gain = str(one.starts or MISSING), gain_text(one.from_stock) or MISSING
    ended = _end(one.left) if one.status == "left" and one.left is not None else one.status
    return one.name, starts, number(one.value), gain, number(one.figures.ttft_ms), ended


def was_tried(one: Tried) -> bool:
    """Return whether a candidate has a row: those that the race did not come to are only counted."""
    return one.status != "not tried yet" and (one.left is None or one.left.reason != "not tried")


def untried_line(answer: TuneAnswer) -> str:
    """Return how many candidates the race did not come to; empty if none."""
    count = sum(not was_tried(one) for one in answer.tried)
    if not count:
        return ""
    left = answer.budget - answer.spent
    one_more, rest = (number(answer.cost(max(one, 0.0))) for one in (answer.one_more, left))
    why = ": too little budget left" if answer.finished else " yet"
    if answer.finished and answer.one_more > left:
        why += f" (another one and its finals take {one_more} {answer.unit}, {rest} are left)"
    return f"{count} of {len(answer.tried)} candidates were not tried{why}"


def refused_lines(found: Iterable[tuple[str, str]]) -> list[str]:
    """Return which candidates were refused before a launch, a line for each reason, from names and reasons."""
    refused: dict[str, list[str]] = {}
    for name, why in found:
        refused.setdefault(why, []).append(name)
    return [f"refused before a launch: {', '.join(names)}: {why}" for why, names in refused.items()]


def imitation_line(answer: TuneAnswer) -> str:
    """Return that the engines are not real ones; empty where they are."""
    return caveat_text(Caveat(kind=CaveatKind.IMITATED, how=answer.imitated)) if answer.imitated else ""


def _end(left: Left) -> str:
    return f"left after round {left.round}" if left.reason == "slower" else ENDS[left.reason]


def left_text(left: Left) -> str:
    """Return why a candidate left the race."""
    note = "too little budget left" if left.reason == "not tried" else left.note
    if left.behind is not None and left.low is not None and left.high is not None:
        share, low, high = (math.expm1(-part) for part in (left.behind, left.high, left.low))
        note = f"{change(share)} {change_interval(low, high)} from the leader"
    return f"{_end(left)}: {note}"


def reason(one: Tried) -> str:
    """Return why a candidate ended as it did, to follow its settings; empty where the table's figures say it."""
    return f" ({left_text(one.left)})" if one.status == "left" and one.left is not None and one.left.note else ""


def doubt_line(answer: TuneAnswer) -> str:
    """Return how many points are void or doubtful, and why; empty if none is so."""
    found = [f"{answer.void} of {answer.points} points are void"] if answer.void else []
    found += [
        f"{count} point{'s are' if count > 1 else ' is'} doubtful ({code})" for code, count in answer.doubts.items()
    ]
    if not found:
        return ""
    return (
        f"{'; '.join(found)}: 'servebench ls --all study={answer.study}' has the candidates, 'servebench show' says why; what is "
        "wrong with all candidates alike may cancel out, but do not rely on it"
    )


ENDS = {
    "start failed": "did not start",
    "requests failed": "requests failed",
    "slo": "missed the SLO",
    "budget": "not in the finals",
    "not tried": "not tried",
    "answers": "changes answers",
}
"""How candidates leave, by the reason; who is slower leaves after a round."""
NOT_MEASURED = "not measured: too little budget left"
SLICES_NOTE = (
    "in the finals engines run at the same time; the load goes from one to the other every few seconds (study.slices)"
)
FROM_STOCK_NOTE = "from stock: by all starts, while the gain in the first line is by those of the finals alone"
