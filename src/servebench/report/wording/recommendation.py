"""The text of a recommendation: scores, leads, and the headline."""

from servebench.analysis.recommendation.model import Recommendation, Score
from servebench.util.figures import change, change_interval, number

UNNAMED = ("no clear difference", "different settings")
"""Outcomes whose line names nobody, so that the ranking begins with the first."""


def score_text(score: Score, unit: str) -> str:
    """Return a score with its interval and unit."""
    interval = f" [{number(score.interval[0])}, {number(score.interval[1])}]" if score.interval is not None else ""
    return f"{number(score.value)}{interval} {unit}".strip()


def place_text(score: Score) -> str:
    """Return at which load a score was reached, and up to which load the SLO was met."""
    at = f"at {score.at.words}" if score.at else ""
    slo = f"SLO met up to {score.slo_at.words}" if score.slo_at else ""
    return ", ".join(filter(None, (at, slo, "doubtful" if score.doubtful else "")))


def lead_text(found: Recommendation) -> str:
    """Return the lead with its interval, in percent of what it is over, and over whom; empty without one. Where single starts
    leave it open who is best, there is no interval: that of one start each knows nothing of how starts differ."""
    if found.lead is None:
        return ""
    if found.outcome == "no clear difference" and found.one_start:
        return f"{change(found.lead)} vs {short_name(found.rival, found)} by one start each, which may be chance"
    known = found.lead_low is not None and found.lead_high is not None
    interval = f" {change_interval(found.lead_low, found.lead_high)}" if known else ""
    return f"{change(found.lead)}{interval} vs {short_name(found.rival, found)}"


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


def brief_headline(found: Recommendation) -> str:
    """Return the headline without what the lines around it say."""
    if not found.ranking or found.outcome in (*UNNAMED, "only one"):
        return headline(found)
    first = found.ranking[0]
    at = f" at {first.at.words}" if first.at else ""
    best = f"{short_name(first.entrant.name, found)}: {score_text(first, found.use_case.unit)}{at}"
    if found.outcome == "one start each":
        return f"fastest start seen (one each): {best}"
    return best if found.trust == "clear" else f"{found.trust}: {best}"


def value_text(score: Score, found: Recommendation) -> str:
    """Return whose score it is and how high."""
    return f"{short_name(score.entrant.name, found)} {number(score.value)} {found.use_case.unit}".strip()


def short_name(name: str, found: Recommendation) -> str:
    """Return the label of a run without the workload, which stands above it."""
    return name.removesuffix(f" · {found.group.rpartition(' · ')[2]}")
