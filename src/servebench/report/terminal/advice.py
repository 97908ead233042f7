"""The output of `servebench recommend`, in the terminal and as JSON."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from servebench.analysis.recommendation.model import Recommendation, Score
from servebench.contracts.point_row import level_words
from servebench.util.figures import change, change_interval, number

STYLES = {
    "clear": "green",
    "provisional": "yellow",
    "no clear difference": "yellow",
    "different settings": "yellow",
    "one start each": "cyan",
    "only one": "cyan",
    "none qualifies": "yellow",
    "not measured": "dim",
}
RUNNERS_UP = 3
UNNAMED = ("no clear difference", "different settings")
"""Outcomes whose line names nobody, so that the ranking begins with the first."""


def score_text(score: Score, unit: str) -> str:
    """Return a score with its interval and unit."""
    interval = f" [{number(score.interval[0])}, {number(score.interval[1])}]" if score.interval is not None else ""
    return f"{number(score.value)}{interval} {unit}".strip()


def place_text(score: Score) -> str:
    """Return at which load a score was reached, and up to which load the SLO was met."""
    at = f"at {level_words(score.at)}" if score.at else ""
    slo = f"SLO met up to {level_words(score.slo_at)}" if score.slo_at else ""
    return ", ".join(filter(None, (at, slo, "doubtful" if score.doubtful else "")))


def lead_text(found: Recommendation) -> str:
    """Return the lead with its interval, in percent of what it is over, and over whom; empty without one. Where single starts
    leave it open who is best, there is no interval: that of one start each knows nothing of how starts differ."""
    if found.lead is None:
        return ""
    if found.outcome == "no clear difference" and found.one_start:
        return f"{change(found.lead)} vs {_short(found.rival, found)} by one start each, which may be chance"
    known = found.lead_low is not None and found.lead_high is not None
    interval = f" {change_interval(found.lead_low, found.lead_high)}" if known else ""
    return f"{change(found.lead)}{interval} vs {_short(found.rival, found)}"


def headline(found: Recommendation) -> str:
    """Return the recommendation in one line."""
    if not found.ranking or found.outcome in UNNAMED:
        return f"{found.words}: {found.why}"
    first = found.ranking[0]
    text = f"{first.entrant.name}: {score_text(first, found.use_case.unit)}"
    if found.outcome == "one start each":
        return f"fastest start seen (one each): {text}"
    if found.outcome == "only one":
        return f"{text} ({'the only one that qualifies' if found.missing else 'nothing to compare it with'})"
    text += f", {lead_text(found)}" if found.lead is not None else ""
    return text if found.trust == "clear" else f"provisional: {text}; {found.trust_why}"


def print_recommendations(found: Sequence[Recommendation], out: Console, *, verbose: bool = True) -> None:
    """Print who is best for each use; with `verbose` each ranking, uses that were not measured, what is missing and what would
    change the answers."""
    if not verbose:
        return _print_brief([one for one in found if one.outcome != "not measured"], out, _unmeasured(found))
    for one in found:
        group = f"  ({one.group})" if one.group else ""
        out.print(Text(one.use_case.title, style="bold").append(group, style="not bold dim"))
        out.print(Text(f"  {headline(one)}", style=STYLES[one.trust]))
        for rank, score in enumerate(one.ranking[: 1 + RUNNERS_UP], start=1):
            line = f"  {rank}. {score.entrant.name}: {score_text(score, one.use_case.unit)} {place_text(score)}"
            out.print(line.rstrip())
        for line in one.quality:
            out.print(Text(f"  but: {line}", style="yellow"))
        for other in one.missing:
            out.print(f"  not ranked: {other.name}: {other.why}", style="dim")
        for line in one.changes:
            out.print(f"  the answer may change: {line}")
        out.print()
    return None


def _unmeasured(found: Sequence[Recommendation]) -> str:
    titles = [one.use_case.title for one in found if one.outcome == "not measured"]
    return f"not measured: {', '.join(titles)}" if titles else ""


def _print_brief(found: Sequence[Recommendation], out: Console, unmeasured: str) -> None:
    """Print who is best for each use and by how much, then the runners-up; what all uses share only once."""
    parts = [one.group.split(" · ") for one in found]
    shared = [part for part in (parts[0] if len(parts) > 1 else ()) if all(part in own for own in parts)]
    if shared:
        out.print(" · ".join(shared), style="dim")
    for one, own in zip(found, parts, strict=True):
        group = " · ".join(part for part in own if part not in shared)
        out.print(Text(one.use_case.title, style="bold").append(f"  {group}", style="not bold dim"))
        out.print(Text(f"  {_brief(one)}", style=STYLES[one.trust]))
        rest = ", then ".join(_value(score, one) for score in one.ranking[1 : 1 + RUNNERS_UP])
        lead = lead_text(one) if one.outcome != "one start each" else ""
        if rest and one.outcome in UNNAMED:
            ahead = f" ({lead})" if one.best else ""
            out.print(f"  {_value(one.ranking[0], one)}{ahead}, then {rest}", style="dim")
        elif rest:
            out.print(f"  {lead}; then {rest}" if lead else f"  then {rest}", style="" if lead else "dim")
        for line in one.quality:
            out.print(Text(f"  but: {line}", style="yellow"))
    out.print(unmeasured, style="dim", end="\n" * bool(unmeasured))
    out.print("why, what is missing and what would change the answers: -v", style="dim")


def _brief(found: Recommendation) -> str:
    """The headline without what the lines around it say."""
    if not found.ranking or found.outcome in (*UNNAMED, "only one"):
        return headline(found)
    first = found.ranking[0]
    at = f" at {level_words(first.at)}" if first.at else ""
    best = f"{_short_name(first, found)}: {score_text(first, found.use_case.unit)}{at}"
    if found.outcome == "one start each":
        return f"fastest start seen (one each): {best}"
    return best if found.trust == "clear" else f"{found.trust}: {best}"


def _value(score: Score, found: Recommendation) -> str:
    return f"{_short_name(score, found)} {number(score.value)} {found.use_case.unit}".strip()


def _short_name(score: Score, found: Recommendation) -> str:
    """The label of a run without the workload, which stands above it."""
    return _short(score.entrant.name, found)


def _short(name: str, found: Recommendation) -> str:
    return name.removesuffix(f" · {found.group.rpartition(' · ')[2]}")
