"""The text of a tune's answer, for the terminal and the page."""

from __future__ import annotations

from servebench.analysis.tuning.answer import Tried, TuneAnswer
from servebench.analysis.tuning.candidates import describe_settings
from servebench.util.figures import MISSING, number, percent

HEADINGS = ("candidate", "settings", "starts", "value", "from stock [95%]", "TTFT p50", "how it ended")


def headline(answer: TuneAnswer) -> str:
    """Return the answer in one sentence."""
    settings = describe_settings(answer.settings) if answer.settings else "its stock settings"
    least = number(answer.cost(answer.least_budget))
    gain = answer.gain.text if answer.gain is not None else "an unknown gain"
    return {
        "better": f"{answer.winner_name} is best: {settings}; {gain} over stock",
        "open": f"{answer.winner_name} looks best: {settings}; {gain} over stock, which is not proven",
        "as good": f"stock is as good: the best other settings ({settings}) gain {gain}, too little to matter and not proven",
        "stock": "stock is as good: no other settings were better",
        "too little": f"the budget is too small: a comparison of one candidate with stock needs about {least} {answer.unit}",
        "none": "nobody won: no candidate could be measured or met the limits",
    }[answer.verdict]


def asked_line(answer: TuneAnswer) -> str:
    """Return the question in one line."""
    at = ", ".join(f"{one:g}" for one in answer.levels)
    objective = answer.objective
    way, margin = "highest" if objective.higher else "lowest", percent(answer.question.margin_share)
    return f"{way} {objective.name} ({objective.unit}) at {at}; settings within {margin} count as equal"


def spent_line(answer: TuneAnswer) -> str:
    """Return what was spent, and what a grid would have taken."""
    spent, budget, grid = (number(answer.cost(one)) for one in (answer.spent, answer.budget, answer.grid))
    tried = sum(one.blocks > 0 for one in answer.tried)
    share = f" ({percent(answer.spent / answer.grid)})" if answer.grid else ""
    return (
        f"spent {spent} of {budget} {answer.unit} on {tried} of {len(answer.tried)} candidates; a grid over them with three "
        f"repeats would have taken {grid}{share}, and the whole space has {answer.space_size:,} settings"
    )


def value_line(answer: TuneAnswer) -> str:
    """Return the best candidate's value beside that of stock."""
    unit, stock = answer.objective.unit, f"stock {number(answer.stock_value)} {answer.objective.unit}"
    return stock if not answer.settings else f"{answer.winner_name} {number(answer.value)} {unit}, {stock}"


def contribution_lines(answer: TuneAnswer) -> list[str]:
    """Return what each setting of the winner contributes."""
    return [
        f"{one.key}: {one.before} -> {one.after}: {one.gain.text if one.gain is not None else NOT_MEASURED}"
        for one in answer.contributions
    ]


def rows(answer: TuneAnswer) -> list[tuple[str, ...]]:
    """Return the rows of the table of candidates under HEADINGS."""
    return [
        (
            f"{one.name}{' *' if one.on_front else ''}",
            one.settings if one.origin != "stock" else MISSING,
            str(one.starts or MISSING),
            number(one.value),
            one.from_stock.text if one.from_stock is not None else MISSING,
            number(one.figures.ttft_ms),
            one.status,
        )
        for one in answer.tried
    ]


def short_status(one: Tried) -> str:
    """Return how a candidate ended, without the figures."""
    return one.status.partition(":")[0]


def reason(one: Tried) -> str:
    """Return why a candidate ended as it did, to follow its settings; empty where the table's figures say it."""
    kind, _, why = one.status.partition(": ")
    return f" ({kind}: {why})" if why and kind not in FIGURES_SAY and not kind.startswith("left after") else ""


def shortened(text: str, length: int) -> str:
    """Return a text of at most this length."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def doubt_line(answer: TuneAnswer) -> str:
    """Return how many points say nothing by themselves; empty if none is so."""
    if not answer.void:
        return ""
    return (
        f"{answer.void} of {answer.points} points are void: 'servebench show {answer.study} -v' says why; what is wrong with all "
        "candidates alike may cancel out, but do not rely on it"
    )


FIGURES_SAY = ("not in the finals", "not tried")
"""Ends that the figures of the table explain; so does "left after round N"."""
NOT_MEASURED = "not measured: too little budget left"
FRONT_NOTE = (
    "*: no other has both more throughput and a shorter TTFT (p50, ms); from stock: by all starts, while the gain in the "
    "first line is by those of the finals alone"
)
