"""The text of an answer: the last screen of a study, the report, MLflow, and the JSON of all commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from servebench.analysis.answer import model
from servebench.analysis.slow_starts import OwnSlowStarts
from servebench.analysis.verdict.model import FAILED, FASTER
from servebench.contracts.level import levels_in_words
from servebench.report.wording.comparison import description_of, not_usable_text, text_of
from servebench.util.figures import duration, listed, number

AHEAD_MIN = 0.03
"""Smaller leads of single starts are not worth a word: starts of one engine often differ by as much."""
TIMES_FROM = 1.0
"""From this lead on, a factor is easier to read than a percentage."""
NAMED_MAX = 4
"""More runs without a difference are only counted."""
PAIRS_MAX = 3
"""More pairs that differ in other metrics are only counted."""


def _out_of_line(one: model.Caveat) -> str:
    assert one.level is not None
    assert one.heavier is not None
    return (
        f"{one.label} at {one.level.words}: {number(one.factor, 2)} times slower for each user than at "
        f"{one.heavier.words}, so something held it up: measure it again."
    )


def slow_starts_text(slow: OwnSlowStarts) -> str:
    """Return how many starts of a run's engine are slow, by how much, and whether the run's own starts are among them."""
    few, many = min(slow.slower), max(slow.slower)
    size = f"{many:.0%}" if f"{few:.0%}" == f"{many:.0%}" else f"{few:.0%} to {many:.0%}"
    verb = "is" if len(slow.slower) == 1 else "are"
    text = f"{len(slow.slower)} of {slow.count} starts of this engine {verb} {size} slower at all levels"
    if slow.own == 1:
        return f"{text}; this one is{'' if slow.own_slower else ' not'}"
    among = f"{len(slow.own_slower) or 'none'} of the {slow.own} starts of this run"
    return f"{text}; {among} {'are' if len(slow.own_slower) > 1 else 'is'}"


def _slow_starts(one: model.Caveat) -> str:
    assert one.slow_starts is not None
    return f"{one.label}: {slow_starts_text(one.slow_starts)}."


def _one_length(one: model.Caveat) -> str:
    least = max(1, one.tokens // 2)
    return (
        f"All answers have {one.tokens} tokens: users of a closed loop then keep one pattern of phases while a start lives, "
        f"so TTFT differs more between starts; workload.output_tokens={least}..{2 * one.tokens - least} varies them."
    )


CAVEATS: dict[model.CaveatKind, Callable[[model.Caveat], str]] = {
    model.CaveatKind.IMITATED: lambda one: (
        f"{one.how.capitalize()} engines: these numbers do not describe the real ones."
    ),
    model.CaveatKind.OUT_OF_LINE: _out_of_line,
    model.CaveatKind.ONE_START_EACH: lambda _: (
        "One start of each: these are differences of these starts, not yet a verdict on the engines."
    ),
    model.CaveatKind.NO_VERDICT_YET: lambda _: (
        "No lead is a verdict on the engines yet: study.until=decided adds starts until there is one."
    ),
    model.CaveatKind.BY_EARLIER: lambda _: (
        "With few starts of each, how sure these leads are rests on how much earlier starts of the same set-ups differed."
    ),
    model.CaveatKind.SLOW_STARTS: _slow_starts,
    model.CaveatKind.ONE_LENGTH: _one_length,
    model.CaveatKind.WIDE: lambda one: (
        f"Wide: the interval is wider than {' or '.join(one.limits)}; raise {' or '.join(one.keys)}."
    ),
}

PURPOSES: dict[model.Purpose, Callable[[model.NextStep], str]] = {
    model.Purpose.FINISH: lambda _: "measure what is missing",
    model.Purpose.TRY_AGAIN: lambda _: "try the failed runs again",
    model.Purpose.MEND: lambda _: "mend the argument that failed",
    model.Purpose.DECIDE: lambda one: (
        f"to decide what is open, about {one.count} more start{'s' * (one.count > 1)} of each"
    ),
    model.Purpose.BETTER: lambda one: (
        _points_again(one)
        + (f", with up to {one.requests:,} requests each" if one.requests is not None else ", twice as long")
    ),
    model.Purpose.MORE_STARTS: lambda one: f"for a verdict, {one.count} times this study",
    model.Purpose.NARROWER: lambda _: "for intervals half as wide",
    model.Purpose.UNTIL_DECIDED: lambda _: "for a verdict: adds starts until there is one",
    model.Purpose.ACCEPT: lambda _: "to accept the different settings",
    model.Purpose.CHOOSE: lambda _: "the best for each use, and how sure that is",
    model.Purpose.CHARTS: lambda _: "all charts",
}


def caveat_text(caveat: model.Caveat) -> str:
    """Return what holds for the whole answer, as a sentence."""
    return CAVEATS[caveat.kind](caveat)


def purpose_text(step: model.NextStep) -> str:
    """Return why to run a command."""
    return ", ".join(PURPOSES[one](step) for one in step.purposes)


def step_reason(step: model.NextStep) -> str:
    """Return why to run a command, and about how long that takes."""
    return purpose_text(step) + (f": about {duration(step.seconds)}" if step.seconds else "")


def _points_again(step: model.NextStep) -> str:
    if step.count == step.of:
        return f"the {step.count} points in doubt" if step.count > 1 else "the point in doubt"
    return f"{step.count} of the {step.of} points in doubt"


def failure_text(failed: model.FailedRun) -> str:
    """Return which run has not finished, and why."""
    return f"{failed.label}: {failed.standing}" + (f": {failed.error}" if failed.error else "")


def title_of(answer: model.WorkloadAnswer) -> str:
    """Return a workload with what all its runs share."""
    return " · ".join(part for part in (answer.workload, *answer.facts) if part and part != "none")


def sentence_of(answer: model.WorkloadAnswer) -> str:
    """Return who leads where and what else differs; of a single run its figures; empty without any."""
    taken = _not_usable(answer.not_usable, len(answer.levels)) if answer.not_usable is not None else ""
    leads = _overall(answer.overall, answer) if answer.overall is not None else leads_in_words(answer.leads)
    led = [text for text in (leads, _others_in_words(answer.others)) if text]
    return "; ".join(filter(None, (*(led or [_alone(answer)]), taken)))


def _overall(found: model.Overall, answer: model.WorkloadAnswer) -> str:
    """Who leads on average over all levels, or that nobody does, and the levels that are not so."""
    first, last = answer.levels[0], answer.levels[-1]
    where = f"at {last.words}: sure" if first == last else f"on average over {first.number} to {last.words}: sure"
    if found.best is None:
        names = [column.label for column in answer.columns if column.cells]
        return f"{listed(names)} differ by at most {found.within or 0.0:.1%} in tok/s {where}"
    text = f"{found.best} gives {_more(found.size or 0.0, found.low, found.high, found.rival or '')} {where}"
    otherwise = leads_in_words([one for one in answer.leads if one.clear and one.best != found.best])
    open_at = [one.level for one in answer.leads if not one.clear]
    unclear = f"not clear at {levels_in_words(open_at)}" if open_at else ""
    return "; ".join(filter(None, (text, otherwise, unclear)))


def _not_usable(found: model.NotUsable, levels: int) -> str:
    """Which points are not compared, because others took their machine: runs that lack the same levels together."""
    runs: dict[str, list[str]] = {}
    for label, own in found.places.items():
        runs.setdefault("" if levels == 1 else f" at {levels_in_words(own)}", []).append(label)
    places = "; ".join(f"{' and '.join(names)}{at}" for at, names in runs.items())
    return f"{places}: {not_usable_text(found.by)}"


def _alone(answer: model.WorkloadAnswer) -> str:
    """What the only run that was measured shows: its highest throughput, and what one gets at its lowest load."""
    measured = [one for one in answer.columns if one.cells]
    if len(measured) != 1:
        return ""
    cells = measured[0].cells
    known = [level for level in answer.levels if cells[level].value and cells[level].verdict != "void"]
    if not known:
        return ""
    top = max(known, key=lambda level: cells[level].value or 0.0)
    ttft_ms = cells[top].ttft_ms
    ttft = f", TTFT p50 {number(ttft_ms)} ms" if ttft_ms is not None else ""
    most = "most output at " if len(known) > 1 else ""
    only = f"only {measured[0].label} was measured: " if len(answer.columns) > 1 else ""
    return f"{only}{most}{top.words}: {cells[top].text} {answer.unit}{ttft}"


def lead_text(lead: model.LevelLead) -> str:
    """Return a lead with its interval: `41% [35, 48] more tok/s than x`, `2.3 times [2.1, 2.6] the tok/s of x`."""
    return _more(lead.size, lead.low, lead.high, lead.rival.label)


def _more(size: float, low: float | None, high: float | None, rival: str) -> str:
    ends = low, high
    if size >= TIMES_FROM:
        interval = "" if None in ends else f" [{', '.join(number(1 + (end or 0), 2) for end in ends)}]"
        return f"{number(1 + size, 2)} times{interval} the tok/s of {rival}"
    digits = 0 if size >= 0.1 else 1
    interval = "" if None in ends else f" [{', '.join(f'{100 * (end or 0):.{digits}f}' for end in ends)}]"
    return f"{100 * size:.{digits}f}%{interval} more tok/s than {rival}"


def _ahead(leads: Sequence[model.LevelLead]) -> str:
    """The largest of leads that are not clear: those of single starts from AHEAD_MIN on, and those over starts whose interval
    leaves out 0, where a level is one of many questions."""
    ahead = [
        lead
        for lead in leads
        if (lead.low or 0.0) > 0 or (lead.size >= AHEAD_MIN and (lead.rival.of_single_starts or not lead.rival.tested))
    ]
    if not ahead or leads[0].few is not None:
        return ""
    most = max(ahead, key=lambda lead: lead.size)
    at = f" at {most.level.words}" if len(leads) > 1 else ""
    of = f" of {most.rival.label}" if len(most.tied) > 1 else ""
    if most.rival.of_single_starts or not most.rival.tested:
        return f" ({most.best} is {_share(most.size)} ahead{of}{at}; {_chance(most.rival)})"
    but = "is too little to matter" if most.certain else "may still be chance"
    return f" ({most.best} is {_share(most.size)} ahead{of}{at}, which {but})"


def _chance(rival: model.Rival) -> str:
    """What chance allows of a lead on single starts: by how much two starts of one engine differ, and what shows that."""
    earlier = rival.row.method.earlier if rival.row is not None and rival.row.method is not None else 0
    by = f" ({earlier} earlier starts of this machine)" if earlier else ""
    return f"up to {_share(rival.bound)} may be chance{by}" if rival.bound else "may be chance"


def _share(share: float) -> str:
    return f"{share:.{0 if share >= 0.1 else 1}%}"


def _kind(lead: model.LevelLead) -> tuple[str | frozenset[str], bool, bool, bool]:
    """What neighbouring levels must share to be one clause: the leader, or those between which there is no clear difference."""
    who = lead.best if lead.clear else frozenset((lead.best, *lead.tied))
    return who, lead.clear, lead.within is not None, lead.few is not None


def _behind(leads: Sequence[model.LevelLead]) -> str:
    """Who is clearly slower than the leader where others are not, with the distance at the heaviest level."""
    last = leads[-1]
    if not last.behind:
        return ""
    named = [f"{name} ({100 * share:+.0f}%)" for name, share in last.behind[: NAMED_MAX - 1]]
    more = len(last.behind) - len(named)
    names = ", ".join([*named, *([f"{more} more"] if more else [])])
    at = f" at {last.level.words}" if len(leads) > 1 else ""
    return f"; behind {last.best}{at}: {names}"


def leads_in_words(leads: Sequence[model.LevelLead]) -> str:
    """Return who leads where: neighbouring levels with the same leader share a clause, with the lead at the highest of them."""
    clauses = []
    for (_, clear, same, _), found in groupby(leads, key=_kind):
        group = list(found)
        last = group[-1]
        begin = "" if len(group) == 1 else f"{group[0].level.number} to "
        if clear:
            text = f"{last.best} gives {lead_text(last)}"
            if last.rival.of_single_starts:
                by = f"is {_share(last.size)} ahead of {last.rival.label}"
                if len(group) > 1:
                    by = f"leads, by {_share(last.size)} over {last.rival.label} at {last.level.words}"
                text = f"{last.best} {by}; {_chance(last.rival)}"
            elif len(group) > 1:
                text = f"{last.best} leads, at {last.level.words} with {lead_text(last)}"
        else:
            names = list(dict.fromkeys(name for lead in group for name in (lead.best, *lead.tied)))
            if len(names) > NAMED_MAX:
                names = [*names[: NAMED_MAX - 1], f"{len(names) - NAMED_MAX + 1} others"]
            both = listed(names)
            bound = max(lead.within or 0.0 for lead in group)
            text = f"open: no clear difference in tok/s between {both}"
            text = f"{both} are not usable: {text_of([last.few])}" if last.few is not None else text
            text = f"{both} differ by at most {bound:.1%} in tok/s" if same else text
            text += "" if same else _ahead(group) + _behind(group)
        but = _but("provisional", [lead for lead in group if lead.codes], group)
        but += _but("different settings", [lead for lead in group if lead.clear and lead.rival.unequal], group)
        sure = all(lead.verdict and not lead.codes for lead in group)
        word = f": {'sure' if sure else 'likely'}" if clear else ""
        clauses.append(f"{begin}{last.level.words}: {text}{word}" + (f" ({', '.join(but)})" if but else ""))
    return "; ".join(clauses)


def _but(word: str, found: Sequence[model.LevelLead], group: Sequence[model.LevelLead]) -> list[str]:
    """What holds for some levels of a clause, with these levels if it does not hold for all."""
    if not found:
        return []
    return [word if len(found) == len(group) else f"{word} at {levels_in_words([lead.level for lead in found])}"]


def _others_in_words(found: Sequence[model.OtherDifference]) -> str:
    texts = [
        f"{one.candidate} is {('worse', 'better')[result is FASTER] if one.row.metric is FAILED else result} than "
        f"{one.baseline}: {description_of(one.row)}"
        for one, result in ((one, one.row.result) for one in found[:PAIRS_MAX])
    ]
    more = [f"{len(found) - PAIRS_MAX} more pairs differ"] if len(found) > PAIRS_MAX else []
    return "; ".join([*texts, *more])
