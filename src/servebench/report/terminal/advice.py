"""What `recommend` found, in the terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from servebench.util.figures import number

STYLES = {
    "winner": "green",
    "no clear winner": "yellow",
    "only one": "cyan",
    "none qualifies": "yellow",
    "not measured": "dim",
}
RUNNERS_UP = 3


def figure(score: Any, unit: str) -> str:
    """A score with its interval and its unit."""
    interval = score.interval
    spread = f" [{number(interval[0])}, {number(interval[1])}]" if interval is not None else ""
    return f"{number(score.value)}{spread} {unit}".strip()


def place(score: Any) -> str:
    """At which load, and up to which one the limits were met."""
    parts = [f"at load {score.at}" if score.at else "", f"SLO met up to {score.slo_at}" if score.slo_at else ""]
    return ", ".join(filter(None, [*parts, "doubtful" if score.doubtful else ""]))


def lead(answer: Any) -> str:
    """The lead over the runner-up with its interval, in percent of the runner-up; empty without one."""
    if answer.lead is None:
        return ""
    spread = ""
    if answer.lead_low is not None and answer.lead_high is not None:
        spread = f" [{100 * answer.lead_low:+.1f}, {100 * answer.lead_high:+.1f}]"
    return f"{100 * answer.lead:+.1f} %{spread}"


def headline(answer: Any) -> str:
    """The answer in one line."""
    if answer.outcome in ("winner", "only one"):
        first = answer.ranking[0]
        reached = f"{first.entrant.name}: {figure(first, answer.use_case.unit)}"
        return f"{reached}, {lead(answer)} against the next" if answer.outcome == "winner" else f"only {reached}"
    return f"{answer.outcome}: {answer.why}"


def print_answers(answers: Sequence[Any], out: Console) -> None:
    """Write every answer: winner or not, ranking, what would change it."""
    for answer in answers:
        where = f"  ({answer.group})" if answer.group else ""
        out.print(Text(answer.use_case.title, style="bold").append(where, style="not bold dim"))
        out.print(Text(f"  {headline(answer)}", style=STYLES[answer.outcome]))
        for rank, score in enumerate(answer.ranking[: 1 + RUNNERS_UP], start=1):
            out.print(
                f"  {rank}. {score.entrant.name}: {figure(score, answer.use_case.unit)} {place(score)}".rstrip(),
                markup=False,
            )
        for line in answer.quality:
            out.print(Text(f"  but: {line}", style="yellow"))
        for line in answer.missing:
            out.print(f"  without a score: {line}", markup=False, style="dim")
        for line in answer.changes:
            out.print(f"  would change it: {line}", markup=False)
        out.print()


def as_dict(answer: Any) -> dict[str, Any]:
    """An answer as plain data."""
    return {
        "use_case": answer.use_case.name,
        "title": answer.use_case.title,
        "group": answer.group,
        "outcome": answer.outcome,
        "winner": answer.winner.entrant.name if answer.winner else None,
        "metric": answer.use_case.metric,
        "unit": answer.use_case.unit,
        "lead": answer.lead,
        "lead_low": answer.lead_low,
        "lead_high": answer.lead_high,
        "why": answer.why,
        "ranking": [
            {
                "run": score.entrant.name,
                "value": score.value,
                "interval": list(score.interval) if score.interval else None,
                "at": score.at or None,
                "slo_point": score.slo_at,
                "doubtful": score.doubtful,
            }
            for score in answer.ranking
        ],
        "missing": list(answer.missing),
        "would_change": list(answer.changes),
        "quality": list(answer.quality),
    }


def to_json(answers: Sequence[Any]) -> str:
    """All answers as JSON."""
    return json.dumps([as_dict(one) for one in answers], indent=2) + "\n"
