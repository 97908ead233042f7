"""The text of a recommendation: scores, leads, reasons, and the sentence of a use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from servebench.analysis.recommendation.model import LessAccurate, Recommendation, Score, UseReason, UseReasonKind
from servebench.contracts.point_row import POINT_COLUMNS
from servebench.report.wording.comparison import agreement_text, not_usable_text, unequal_text
from servebench.util.figures import change, change_interval, number, percent

SHOWN_MAX = 4
"""More runs of a use that is open are not named."""
BEST: Mapping[str, str] = {"clear": "best", "provisional": "best, likely", "one start each": "fastest seen"}
"""What the first of a ranking is called, by how far it is to be trusted."""


def _at(one: UseReason) -> str:
    return ", ".join(level.words for level in one.levels)


def _codes(one: UseReason) -> str:
    return ", ".join(one.codes)


def _lead(one: UseReason) -> str:
    return f"the lead of {percent(one.share)} over {one.rival}"


def _title(one: UseReason) -> str:
    return POINT_COLUMNS[one.metric].title if one.metric in POINT_COLUMNS else one.metric


def _limit(one: UseReason) -> str:
    return f"with a {one.metric.removesuffix('_ms').upper()} limit of {one.limit:g} ms,"


def _ends(one: UseReason) -> str:
    return change_interval(*(one.interval or (None, None)))


def _no_run(one: UseReason) -> str:
    example = f"servebench -m engine=... workload={one.names[0]}"
    return f"no run of workload {' or '.join(one.names)}; measure one: {example}"


def _no_price(one: UseReason) -> str:
    example = "such as gpu.price_usd_per_hour=2.5" + " gpu.count=1 for a machine without a GPU" * (not one.names)
    return f"no run has a price{' of its ' + ' or '.join(one.names) if one.names else ''}: set one, {example}"


def _unknown_size(one: UseReason) -> str:
    whose = f"the point of {one.rival}" if one.rival else "its point"
    warned = f"has warnings of unknown size ({_codes(one)}); --with-doubtful accepts it"
    return f"{one.run} leads, and {whose} at {_at(one)} {warned}"


def _not_decided(one: UseReason) -> str:
    chance = (
        f" its interval {_ends(one)} leaves out 0, but among this many rows it may be chance:" if one.interval else ""
    )
    return f"{_title(one)} against {one.rival} is not decided:{chance} more starts are needed"


def _includes_zero(one: UseReason) -> str:
    several = f" ({percent(one.share)}, for several rivals)" if one.share else ""
    return f"the interval {_ends(one)}{several} of the lead over {one.rival} includes 0"


Kind = UseReasonKind
REASONS: Mapping[UseReasonKind, Callable[[UseReason], str]] = {
    Kind.UNEQUAL: lambda one: unequal_text(one.settings),
    Kind.UNMEASURED: lambda one: (
        f"{one.rival} has no point that counts at {_at(one)}, where it may reach more: measure it again"
    ),
    Kind.SLO_UNDECIDED: lambda one: f"whether {one.run} meets the SLO is undecided: {reason_text(one.cause)}",
    Kind.BY_SLO_POINT: lambda one: f"the lead over {one.rival} depends on the SLO point: {reason_text(one.cause)}",
    Kind.ONE_COLD_START: lambda one: (
        f"{_lead(one)} may be chance, as one cold start of each is stored: measure again"
        if one.rival
        else "one cold start of each is stored: no verdict"
    ),
    Kind.ONE_MEASUREMENT: lambda one: f"{_lead(one)} may be chance, as each was measured once: measure again",
    Kind.STARTS_MAY_DIFFER: lambda one: (
        f"{one.run} is {one.share:.0%} ahead of {one.rival}, but starts of one engine may differ by as much: study.starts=5 "
        "measures five starts of each engine"
    ),
    Kind.INCLUDES_ZERO: _includes_zero,
    Kind.AT_MOST: lambda one: f"{_title(one)} differs from that of {one.rival} by at most {percent(one.share)}",
    Kind.NOT_DECIDED: _not_decided,
    Kind.BELOW_MARGIN: lambda one: f"{_lead(one)} is below the margin of {100 * one.limit:g}%",
    Kind.NONE_RANKED: lambda _: "no run can be ranked",
    Kind.ONLY_ONE: lambda one: f"no other run than {one.run} can be ranked",
    Kind.UNKNOWN_SIZE: _unknown_size,
    Kind.MAY_ACCOUNT: lambda one: (
        f"{_codes(one)} may account for the lead over {one.rival}; --with-doubtful accepts it"
    ),
    Kind.DOUBTFUL_POINT: lambda one: (
        f"the point of {one.run} is doubtful, although its warnings ({_codes(one)}) do not account for the lead"
    ),
    Kind.ONE_START_EACH: lambda _: (
        "more than chance, but of one start each: a difference of these starts, not yet a verdict on the engines; "
        "study.starts=5 measures five of each"
    ),
    Kind.NO_RUN: _no_run,
    Kind.NO_PRICE: _no_price,
    Kind.NOTHING_TO_PAY: lambda _: (
        "the runs have a price and nothing to pay for: set gpu.count, such as gpu.count=1 for the machine"
    ),
    Kind.NO_SLO: lambda _: "no run has an SLO: set one, such as slo=interactive",
    Kind.NO_THROUGHPUT: lambda _: "no point of a run with a price has any throughput",
    Kind.NO_GOOD_REQUEST: lambda _: "no point of a run with a price has a request that met its SLO",
    Kind.NO_POWER: lambda _: "power could not be read: it needs an NVIDIA GPU, or a CPU with readable RAPL counters",
    Kind.NO_COLD_START: lambda _: "no cold start was measured",
    Kind.NO_VALID_POINT: lambda one: (
        not_usable_text(one.taker)
        if one.taker
        else f"no valid point ({_codes(one)})"
        if one.codes
        else "no valid point"
    ),
    Kind.NOT_MET: lambda one: f"no point meets the requirements for {', '.join(one.names)}",
    Kind.LOAD_TOO_HIGH: lambda one: f"its lowest load is {one.levels[0]}, above {one.limit:g}",
    Kind.NO_VALUE: lambda one: f"no {one.metric}",
    Kind.SLO_MISSED: lambda one: (
        f"not even the lowest load ({one.levels[0]}) meets {one.names[0]}: {100 * one.share:.3g}% of requests do"
    ),
    Kind.TOO_CLOSE: lambda one: (
        f"at {_at(one)} {100 * one.share:.4g}% of {one.count} requests meet the limits, too close to {100 * one.limit:g}% to tell"
    ),
    Kind.NO_REQUESTS: lambda one: f"at {_at(one)} it has no single requests that could be tested against the limits",
    Kind.NONE_WITH_LIMIT: lambda one: f"{_limit(one)} none would meet it",
    Kind.LEADS_WITH_LIMIT: lambda one: f"{_limit(one)} {one.run} would lead",
    Kind.STILL_MET: lambda one: f"{one.run} still met the limits at its highest load ({one.levels[0]}): measure higher",
    Kind.LEADS_AT: lambda one: f"at {_at(one)} {one.run} leads",
    Kind.AS_CHEAP: lambda one: f"{one.run} would be as cheap at ${one.limit:.3g} per GPU hour",
    Kind.IN_DOUBT: lambda one: f"the point of {one.run} at {_at(one)} is in doubt ({_codes(one)})",
}


def reason_text(reason: UseReason | None) -> str:
    """Return a reason in words; empty for none."""
    return REASONS[reason.kind](reason) if reason is not None else ""


def reservations_text(found: Recommendation) -> str:
    """Return why there is no best, or why it is not clear; empty where it is."""
    return "; ".join(map(reason_text, found.reservations))


def quality_text(one: LessAccurate) -> str:
    """Return which run is significantly less accurate than which."""
    return f"{one.name} is less accurate than {one.other}: {agreement_text(one.agreement)}"


def best_word(found: Recommendation) -> str:
    """Return what to call the first of the ranking: `best` where its lead is clear, `ahead` where it is more than the interval
    leaves open and yet not the best; empty where it is neither."""
    return BEST.get(found.trust, "ahead" if found.ahead else "")


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
    interval = f" {change_interval(*found.interval)}" if found.interval else ""
    return f"{change(found.lead)}{interval} vs {short_name(found.rival, found)}"


def use_text(found: Recommendation) -> str:
    """Return in a line which run to take for a use, how sure that is, and by how much it leads."""
    if not found.ranking:
        return f"{'not measured' if found.outcome == 'not measured' else 'open'}: {reason_text(found.why)}"
    first = found.ranking[0]
    name, value = short_name(first.entrant.name, found), score_text(replace(first, interval=None), found.use_case.unit)
    value += f" at {first.at.words}" if first.at else ""
    unequal = " (different settings)" if found.unequal is not None else ""
    if found.outcome == "only one":
        return f"{name}: {value} ({'the only one that qualifies' if found.missing else 'nothing to compare it with'})"
    if found.equal and found.why is not None:
        rival = short_name(found.rival, found)
        return (
            f"{name} or {rival}, {found.sureness}: they differ by at most {percent(found.why.share)}; {value}{unequal}"
        )
    if found.sureness == "open":
        return f"open: {', '.join(value_text(score, found) for score in found.ranking[:SHOWN_MAX])}"
    lead = f", {lead_text(found)}" if found.lead is not None else ""
    return f"{name}, {found.sureness}: {value}{lead}{unequal}"


def but_text(found: Recommendation) -> str:
    """Return why a use is open, or who leads at other loads; empty where there is nothing to say."""
    reasons = [found.why] if found.sureness == "open" else [one for one in found.changes if one.kind is Kind.LEADS_AT]
    return "".join(f"; {reason_text(one)}" for one in reasons if one is not None)


def value_text(score: Score, found: Recommendation) -> str:
    """Return whose score it is, how high, and at which load."""
    at = f" at {score.at.words}" if score.at else ""
    return f"{short_name(score.entrant.name, found)} {number(score.value)} {found.use_case.unit}".strip() + at


def short_name(name: str, found: Recommendation) -> str:
    """Return the label of a run without the workload, which stands above it."""
    return name.removesuffix(f" · {found.group.rpartition(' · ')[2]}")
