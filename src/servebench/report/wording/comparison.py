"""The text of a comparison of numbers and of answers, the same in the terminal, Markdown, HTML, JSON and the dashboard."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from servebench.analysis.disturbance import Taker
from servebench.analysis.fairness import KEYS_SHOWN, SettingDifference, varying_of
from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.quality.paired import PairedComparison
from servebench.analysis.quality.parity import Parity, ParityFinding
from servebench.analysis.verdict.compare import STARTS_ADVISED
from servebench.analysis.verdict.gate import Gate
from servebench.analysis.verdict.model import DIFFERENT, FAILED, Comparison, ComparisonRow, Metric
from servebench.analysis.verdict.reasons import MORE_STARTS_HELP, Method, MethodKind, Reason, ReasonKind
from servebench.util import figures
from servebench.util.figures import MISSING, change_interval, duration, number, percent, percent_interval
from servebench.util.groups import grouped

HEADINGS = ("load", "metric", "baseline", "candidate", "change [95%]", "verdict")
ONE_START_NOTE = "With one start each, the intervals allow for what two starts of one engine usually differ by."
OPEN_LOOP_NOTE = "At a rate of arrivals TTFT and E2E count from the schedule."
ONE_START = "one start each: no verdict on the engines"
MORE_STARTS = "more starts are needed (study.starts)"
HOWS = {"mixed": "faster in some metrics and slower in others", "not worse": "not worse beyond the margin"}
REASONS_MAX = 3
"""More reasons are not named where no row has a verdict."""
OF_ONE_ROW = "Each interval is that of its row alone; verdicts allow for the number of rows."

SIDES = {"baseline": "the baseline", "candidate": "the candidate", "both": "either"}
REASONS: dict[ReasonKind, Callable[[Reason], str]] = {
    ReasonKind.ONE_START: lambda _: ONE_START,
    ReasonKind.LEVEL_MISSING: lambda one: f"the {one.side} has no such level",
    ReasonKind.METRIC_MISSING: lambda one: f"there is no such number of {SIDES[one.side]}",
    ReasonKind.REQUESTS_MISSING: lambda one: f"there are no single requests of {SIDES[one.side]}",
    ReasonKind.VOID_POINT: lambda one: not_usable_text(one.taker) if one.taker else f"void point: {_codes(one)}",
    ReasonKind.VOID_TO_REPLACE: lambda one: f"void point (another start may replace it): {_codes(one)}",
    ReasonKind.VOID_FOR_GOOD: lambda one: f"void point in {one.needed} starts, not measured again: {_codes(one)}",
    ReasonKind.FEW_REQUESTS: lambda one: f"{one.count} requests in a start, {one.needed} are needed",
    ReasonKind.FEW_REQUESTS_YET: lambda one: (
        f"{one.count} requests in a start are few: {one.needed} more start{'s' * (one.needed > 1)} of each, or longer points"
    ),
    ReasonKind.FEW_SLICES: lambda one: f"{one.count} slices of time, {one.needed} are needed",
    ReasonKind.REQUESTS_FAILED: lambda _: "too many requests failed for a finite value: see failed requests",
    ReasonKind.WIDENED: lambda one: f"wider by {one.share:.1%} for {_codes(one)}",
    ReasonKind.PROVISIONAL: lambda one: f"provisional: {_codes(one)}",
    ReasonKind.INTERVAL_TOO_WIDE: lambda _: f"the interval is too wide for a verdict: {MORE_STARTS}",
    ReasonKind.MAY_BE_CHANCE: lambda _: f"among this many rows, an interval may leave out 0 by chance: {MORE_STARTS}",
    ReasonKind.STARTS_NEEDED: lambda _: "more starts are needed",
    ReasonKind.STARTS_OF_TTFT: lambda one: f"TTFT takes {one.needed} starts",
}


def taken_text(by: Taker) -> str:
    """Return who took the machine of a point: `another program (pid 4711, python) took 1.0 of 2 cores for 40 s`."""
    who = by.who if by.pid is None else f"another program (pid {by.pid}, {by.who})"
    return f"{who} {by.took} for {duration(by.seconds)}"


def shared_text(found: Comparison) -> str:
    """Return what made the intervals of a comparison wide and is no property of its engines; empty for nothing."""
    by = found.shared_with
    return "" if by is None else f"; fewer once this has ended: {taken_text(by)}"


def not_usable_text(by: Taker) -> str:
    """Return why a point whose machine others took is not compared, and what to do about it."""
    return f"not usable: {taken_text(by)}; wait until it ends, or `resume --better`"


def _codes(reason: Reason) -> str:
    if reason.taker is not None:
        return taken_text(reason.taker)
    return ", ".join(reason.codes) or "void"


def unequal_text(found: Collection[SettingDifference]) -> str:
    """Return what is said of runs with different settings on every screen: how sure what they differ by is, and what to do."""
    keys = [one.title for one in found if one.matters]
    more = len(keys) - KEYS_SHOWN
    named = ", ".join(keys) if more <= 1 else f"{', '.join(keys[:KEYS_SHOWN])} and {more} more"
    varying = f"make them equal, or accept them: --varying '{varying_of(found)}'"
    return f"likely at most, with different settings ({named}); {varying}"


def text_of(reasons: Iterable[Reason]) -> str:
    """Return reasons in words."""
    return "; ".join(REASONS[one.kind](one) for one in reasons)


def title_of(metric: Metric) -> str:
    """Return a metric's title with its unit."""
    return f"{metric.title}, {metric.unit}" if metric.unit else metric.title


def value_of(value: float | None, metric: Metric) -> str:
    """Return the value of one side."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "failed"
    return percent(value) if metric is FAILED else number(value)


def change_of(row: ComparisonRow) -> str:
    """Return a row's change with its interval: of shares of requests in points."""
    if row.effect is None:
        return MISSING
    size = figures.change(row.effect)
    return f"{size.replace('%', ' points') if row.metric is FAILED else size} {change_interval(row.low, row.high)}"


def verdict_of(row: ComparisonRow) -> str:
    """Return a row's verdict; in brackets if it does not compete."""
    if row.result == "not enough data":
        return "open"
    text = f"differ by ≤ {percent(row.bound)}" if row.result == "no difference" else str(row.result)
    return text if row.competes else f"({text})"


def reason_of(row: ComparisonRow) -> str:
    """Return why a row has no verdict, apart from what its verdict says already."""
    return text_of(one for one in row.reasons if one.kind is not ReasonKind.ONE_START)


def shown_rows(comparison: Comparison) -> tuple[ComparisonRow, ...]:
    """Return the rows of a table: first the mean over all levels, where there are several."""
    first = comparison.first
    return comparison.rows if first is None or len(comparison.levels) < 2 else (first, *comparison.rows)


def reason_numbers(comparison: Comparison) -> dict[str, int]:
    """Return the number of each reason, in the order of the rows: rows show numbers, each reason is printed once."""
    reasons = dict.fromkeys(reason for row in shown_rows(comparison) if (reason := reason_of(row)))
    return {reason: number for number, reason in enumerate(reasons, 1)}


def cells_of(row: ComparisonRow) -> tuple[str, ...]:
    """Return the cells of a row under HEADINGS."""
    return (
        "all" if row.overall else str(row.level),
        title_of(row.metric),
        value_of(row.baseline, row.metric),
        value_of(row.candidate, row.metric),
        change_of(row),
        verdict_of(row),
    )


def method_text(method: Method) -> str:
    """Return what an interval rests on."""
    ours, theirs = method.starts
    earlier = f" and {method.earlier} earlier ones" if method.earlier else ""
    both, each = f"{ours} and {theirs} starts", f"{ours} starts each"
    if method.slice_by_slice:
        both = each = f"{ours} start{'s' * (ours > 1)} of each, slice by slice{',' * bool(earlier)}"
    return {
        MethodKind.STARTS: f"the model of starts, from {both}{earlier}",
        MethodKind.LOOKS: f"the model of starts, from {each}{earlier}, for all looks together",
        MethodKind.FAILED_SHARES: f"failed requests of {ours} and {theirs} starts",
        MethodKind.BLOCKS: f"blocks of {ours} and {theirs} starts",
    }[method.kind]


def starts_note(comparison: Comparison) -> str | None:
    """Return what the intervals rest on; None where nothing is compared."""
    known = [row.method for row in shown_rows(comparison) if row.method is not None]
    methods = grouped(dict.fromkeys(known), lambda one: replace(one, starts=(0, 0))).values()
    once = any(row.has(ReasonKind.ONE_START) for row in comparison.rows)
    open_loop = any(row.level.open_loop and row.metric.title.startswith(("TTFT", "E2E")) for row in comparison.rows)
    if not methods:
        return None
    late = [OPEN_LOOP_NOTE] if open_loop else []
    if once:
        return " ".join([ONE_START_NOTE, *late])
    several = [OF_ONE_ROW] if any(row.may_be_chance for row in comparison.rows) else []
    return " ".join([f"Change with its 95% interval: {'; '.join(map(_methods_text, methods))}.", *several, *late])


def _methods_text(methods: Sequence[Method]) -> str:
    """What intervals rest on that differ in their numbers of starts only."""
    least, most = min(min(one.starts) for one in methods), max(methods, key=lambda one: one.starts)
    return method_text(most) + (f" (a level has {least} or more)" if least < min(most.starts) else "")


def description_of(row: ComparisonRow) -> str:
    """Return what changed, by how much, and where."""
    where = "on average over the levels" if row.overall else f"at {row.level.words}"
    if row.effect is None or row.low is None or row.high is None:
        return f"{row.metric.title} {where}"
    return f"{row.metric.title} {change_of(row)} {where}"


def summary_of(comparison: Comparison) -> str:
    """Return the result of a comparison in one sentence: what is most different, within what the runs are equal, or why there is
    no verdict."""
    if comparison.not_started:
        return "; ".join(f"{name} was not started" for name in comparison.not_started)
    if comparison.result == "unequal_settings":
        clear = [one for one in shown_rows(comparison) if one.result in DIFFERENT and not one.doubts]
        how = HOWS["mixed"] if len({one.result for one in clear}) > 1 else "".join({one.result for one in clear})
        what = f"{comparison.candidate} is {how}; largest change: {description_of(_largest(clear))}; " if clear else ""
        return what + unequal_text(comparison.mattering)
    if comparison.result in ("faster", "slower", "mixed", "not worse"):
        how = HOWS.get(comparison.result, comparison.result)
        asked = (*comparison.competing, *([comparison.first] if comparison.first is not None else []))
        different = [row for row in asked if row.result in ("faster", "slower")] or asked
        return f"{comparison.candidate} is {how}; largest change: {description_of(_largest(different))}"
    same = [row.bound or 0.0 for row in comparison.competing if row.result == "no difference"]
    count = len(comparison.competing)
    if comparison.result == "no difference":
        # what a study was decided by is known sooner than its levels and other metrics
        first, open_rows = comparison.first, count - len(same)
        within = f"they differ by at most {percent(comparison.bound)}"
        if open_rows and first is not None and first.result == "no difference" and comparison.bound == first.bound:
            within += f" in {first.metric.title} on average over the levels"
        return within + (f" ({open_rows} of {count} single rows are open)" if open_rows else "")
    if comparison.starts is not None and any(row.has(ReasonKind.ONE_START) for row in comparison.rows):
        return _of_single_starts(comparison, comparison.starts)
    equal = f" ({len(same)} of {count} rows differ by at most {max(same):.1%})" if same else ""
    return _why_undecided(comparison.rows) + equal


def _of_single_starts(comparison: Comparison, starts: tuple[int, int]) -> str:
    alone = [row for row in comparison.rows if row.has(ReasonKind.ONE_START)]
    clear = [row for row in alone if row.low is not None and row.high is not None and not row.low <= 0 <= row.high]
    most = f"these two differ most in {description_of(_largest(clear))}" if clear else "these two do not clearly differ"
    total = STARTS_ADVISED * sum(one for one in comparison.start_seconds if one is not None)
    price = f" (about {duration(total)} for these two)" if None not in comparison.start_seconds else ""
    few = [name for name, count in zip((comparison.baseline, comparison.candidate), starts, strict=True) if count < 2]
    which = f"one start of {few[0]}: no verdict on the engines" if len(few) == 1 else ONE_START
    return f"{which}; {most}; study.starts={STARTS_ADVISED} gives a verdict{price}"


def _largest(rows: Iterable[ComparisonRow]) -> ComparisonRow:
    return max(rows, key=lambda row: abs(row.effect or 0))


def _why_undecided(rows: Sequence[ComparisonRow]) -> str:
    excluded = [row for row in rows if not row.competes and row.result in ("faster", "slower")]
    if excluded:
        codes = ", ".join(dict.fromkeys(code for row in excluded for code in row.doubts))
        largest = _largest(excluded)
        return (
            f"provisional: {description_of(largest)} ({largest.result}), but every level with a difference has warnings of "
            f"unknown size ({codes}); --with-doubtful accepts it"
        )
    reasons = [one for row in rows for one in row.reasons]
    # what more starts settle comes first
    if any(one.kind in MORE_STARTS_HELP for one in reasons):
        return f"not decided: {MORE_STARTS}"
    texts = list(dict.fromkeys(text_of([one]) for one in reasons))
    if any(one.taker is not None for one in reasons):
        return "; ".join(texts[:1])
    return f"not enough data: {'; '.join(texts[:REASONS_MAX])}" if texts else "not enough data"


def gate_failures(gate: Gate) -> list[str]:
    """Return what is worse by more than the limit, a line each."""
    return [
        *(f"{name}: {description_of(row)}" for name, row in gate.regressions),
        *(f"{name}: {agreement_text(agreement.swapped())}" for name, agreement in gate.quality_losses),
    ]


def gate_undecided(gate: Gate) -> list[tuple[str, str]]:
    """Return what cannot be judged, as (candidate, why)."""
    return [
        (one.candidate, summary_of(one) if row is None else why_not_judged(row, gate.question.limit) + shared_text(one))
        for one, row in gate.undecided
    ]


def gate_scope(gate: Gate) -> str:
    """Return what a gate judges, and by which limit."""
    rows = [row for _, own in gate.pairs for row in (*own.within, *own.losses, *own.undecided) if row is not None]
    titles = dict.fromkeys(row.metric.title for row in rows)
    return f"limit {100 * gate.question.limit:g}%{'; judged: ' * bool(titles)}{', '.join(titles)}"


def gate_not_judged(gate: Gate) -> list[str]:
    """Return what nobody asked for and cannot be judged, a line for each pair and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for one, row in ((one, row) for one, own in gate.pairs for row in own.not_judged):
        why = text_of(row.reasons) or "the interval reaches beyond the limit"
        found.setdefault((one.candidate, why), []).append(f"{row.metric.title} at {row.level}")
    return [f"{candidate}: {', '.join(rows)} ({why})" for (candidate, why), rows in found.items()]


def why_not_judged(row: ComparisonRow, limit: float) -> str:
    """Return why it is not known whether a row is within the limit."""
    if row.level_missing:
        return f"{row.level.words}: {text_of(row.reasons)}"
    if not row.competes or row.p_corrected is None or row.has(ReasonKind.STARTS_OF_TTFT):
        return f"{row.metric.title} at {row.level.words}: {text_of(row.reasons) or MORE_STARTS}"
    unit = " points" if row.metric is FAILED else "%"
    return (
        f"{description_of(row)}: up to {100 * row.worst_case:.1f}{unit} worse is possible, more than the limit of "
        f"{100 * limit:g}%; more starts narrow the interval (study.starts)"
    )


PARITY: Mapping[ParityFinding, str] = {
    "the same": "the answers are the same",
    "no more than itself": "the runs differ no more than one of them differs from itself under load",
    "more than itself": "the runs differ more than either differs from itself under load",
    "too small to tell": "not enough prompts to tell whether the runs differ more than one differs from itself under load",
}


def paired_text(found: PairedComparison) -> str:
    """Return whether two runs differ on the same questions."""
    if found.first_share is None or found.second_share is None:
        return f"{found.finding}: both answered {found.n} question{'' if found.n == 1 else 's'}"
    first, second = (f"{one:.3f}" if found.scores else f"{one:.1%}" for one in (found.first_share, found.second_share))
    needed = f"; about {found.n_needed} questions are needed" if found.n_needed else ""
    return f"{found.finding}: {first} vs {second} on {found.n} questions, p = {found.p_value:.2g}{needed}"


def agreement_text(found: Agreement) -> str:
    """Return whether two runs differ on a benchmark, or why they cannot be compared."""
    if found.comparison is not None:
        text = paired_text(found.comparison)
    elif found.methods:
        text = f"not comparable: graded by {' and by '.join(found.methods)}"
    else:
        text = (
            "not comparable: the questions differ: check quality.seed, quality.shots, quality.max_tokens and the data"
        )
    if found.chance is not None:
        text += f"; neither is better than guessing ({found.chance:.0%})"
    return f"{found.benchmark} at {found.at}: {text}"


def parity_text(found: Parity) -> str:
    """Return whether two runs give the same answers, and how steady each is."""
    across = found.across
    equal = f"{percent(across.share)} of {across.n} answers are equal {percent_interval(*across.interval)}"
    parts = [f"{PARITY[found.finding]}: {equal}"]
    if across.first:
        parts[0] += (
            f", the others diverge after {across.first[0]} {across.unit} or more (median {median(across.first):g})"
        )
    if across.logprob_gap_mean is not None:
        parts.append(
            f"log-probabilities differ by {across.logprob_gap_mean:.2g} on average, by {across.logprob_gap_max:.2g} at most"
        )
    steady = " and ".join(percent(one.share) for one in (found.own_first, found.own_second))
    parts.append(f"each run alone and under load: {steady} equal (p = {found.p_value:.2g})")
    if found.n_needed:
        parts.append(f"about {found.n_needed} prompts are needed")
    return "; ".join(parts)
