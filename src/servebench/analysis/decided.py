"""Decisions of a stored study with `study.until=decided`, from what is on disk: while it runs, and afterwards."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.fairness import unequal_settings
from servebench.analysis.pairing import engine_lives, engine_seconds, sides_of
from servebench.analysis.verdict.compare import with_rows
from servebench.analysis.verdict.gate import GateQuestion
from servebench.analysis.verdict.looks import decide, looks_beyond, looks_until
from servebench.analysis.verdict.model import DIFFERENT, EQUAL, FAILED, NOT_WORSE, OPEN, Comparison, ComparisonRow
from servebench.analysis.verdict.reasons import MORE_STARTS_HELP, Reason, ReasonKind
from servebench.contracts.labels import run_labels
from servebench.contracts.level import Level
from servebench.contracts.precision import LOOKS, seconds_of, share_of
from servebench.contracts.settings import StudySettings
from servebench.contracts.stored import RunData, StudyData, is_number, mapping
from servebench.util.stretches import covered
from servebench.util.units import NS_PER_S


@dataclass(frozen=True, kw_only=True)
class StudyDecision:
    """What a study has decided so far, and the seconds for which engines ran.

    `pairs` have the rows of its looks; settings that matter do not change these. `start_seconds` are those of the latest start
    of each run, by run id, `labels` how the runs of the study are called. Engines may run for `budget_s`. `ended`: the study is
    over, and may go on with more budget.
    """

    study_id: str
    pairs: tuple[Comparison, ...]
    settings: StudySettings
    engine_s: float
    budget_s: float
    start_seconds: Mapping[str, float]
    labels: Mapping[str, str]
    ended: bool = False

    def open_levels(self, run: str, others: Iterable[str]) -> set[Level]:
        """Return the levels of a run that are still open against one of these others."""
        partners = set(others)
        open_to = [one for one in self.pairs if run in one.ids and partners & ({*one.ids} - {run})]
        return {level for pair in open_to for level in pair.open_levels}

    def below_last_look(self, runs: Iterable[str]) -> bool:
        """Return whether some of these runs have an open pair with fewer starts than the last look has."""
        known = set(runs)
        return any(one.starts_looked < LOOKS[-1] for one in self.pairs if {*one.ids} <= known and one.open_levels)

    def more_starts(self) -> tuple[int, float] | None:
        """Return how many more starts of a run would decide what starts can decide, and the engine seconds of all of them, if it
        goes on as so far; None if nothing open would be decided within LOOKS."""
        wanted: dict[str, list[int | None]] = {}
        for pair in self.pairs:
            if pair.open_levels:
                needed, have = pair.starts_needed, pair.starts_looked
                more = needed - have if needed is not None and have < needed <= LOOKS[-1] else None
                for run in pair.ids:
                    wanted.setdefault(run, []).append(more)
        most = max((more for own in wanted.values() for more in own if more is not None), default=0)
        if not most:
            return None
        # a run with a pair that stays open takes part in all rounds
        rounds = {run: most if None in own else max(one or 0 for one in own) for run, own in wanted.items()}
        return most, sum(count * self.start_seconds.get(run, 0.0) for run, count in rounds.items())


ENDED = ("finished", "failed")


def study_settings(run: RunData) -> StudySettings | None:
    """Return how a stored run's study decides; None if it has no `study.until`."""
    stored = mapping(run.config.get("study"))
    names = ("starts", "until", "margin", "budget", "metrics")
    known = {name: stored[name] for name in names if stored.get(name) is not None}
    return StudySettings(**known) if known.get("until") in ("decided", "gate") else None


def same_question(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two configs have one model and one workload, so that their engines are compared."""
    models = [mapping(one.get("model")).get("name") for one in (a, b)]
    return models[0] == models[1] and mapping(a.get("workload")) == mapping(b.get("workload"))


def decide_study(
    study: StudyData,
    earlier: Iterable[RunData] = (),
    *,
    margin: float | None = None,
    varying: str | None = None,
) -> StudyDecision | None:
    """Return what a study with `study.until=decided` has decided; None for another study.

    `earlier` are other stored runs: of those that began before the study, starts of the same set-ups show by how much starts
    differ. `margin` replaces that of the study, `varying` are settings that differ on purpose. Raises StoreError for a damaged
    table.
    """
    settings = next((one for run in study.runs if (one := study_settings(run)) is not None), None)
    if settings is None or not (measured := [run for run in study.runs if run.point_rows]):
        return None
    began_s = float(study.state.get("started_s") or 0.0)
    before = [one for one in earlier if one.study_id != study.study_id and (one.started_s or began_s) < began_s]
    labels = run_labels(study.runs)
    compared = [(a, b) for a, b in combinations(measured, 2) if same_question(a.config, b.config)]
    limit = share_of("study.margin", settings.margin) if margin is None else margin
    gate = GateQuestion(limit, settings.metrics and tuple(settings.metrics)) if settings.until == "gate" else None
    if gate is not None:
        firsts = [run for run in measured if not any(run is b for _, b in compared)]
        compared = [pair for pair in compared if any(pair[0] is one for one in firsts)]
    # a virtual clock begins at the real time of a start, and overtakes it
    apart = bool(study.state.get("launcher")) or any(run.fact("launch") == "simulated" for run in measured)
    each = engine_seconds([run.point_rows for run in measured], apart=apart)
    seconds = dict(zip((run.run_id for run in measured), each, strict=True))
    replaced_s = sum(map(_replaced_seconds, measured))
    # without one in its state a study has the budget that it was planned with
    added = study.state.get("budget_s")
    budget_s = float(added) if is_number(added) and 0 < added < float("inf") else None
    decided = decide(
        sides_of(compared, before, labels),
        margin=limit,
        looks=(looks_until if budget_s is None else looks_beyond)(settings.most_starts),
        gate=gate,
    )
    return StudyDecision(
        study_id=study.study_id,
        pairs=tuple(
            replace(one, unequal=unequal_settings(a, b, varying)) for one, (a, b) in zip(decided, compared, strict=True)
        ),
        settings=settings,
        engine_s=sum(sum(one) for one in seconds.values()) + replaced_s,
        budget_s=seconds_of("study.budget", settings.budget) if budget_s is None else budget_s,
        start_seconds={name: one[-1] for name, one in seconds.items() if one},
        labels={key: one.text for key, one in labels.items()},
        ended=study.status in ENDED and all(run.status in ENDED for run in study.runs),
    )


def as_decided(comparison: Comparison, found: StudyDecision) -> Comparison:
    """Return a comparison of two runs as the study has decided it: by its margin, and with no verdict that it has not made.

    The study ended when it had decided, so tests for a number of starts that was fixed before do not hold. Failed requests
    decide nothing of when it ends, and keep theirs.
    """
    pair = next((one for one in found.pairs if set(comparison.ids) == set(one.ids)), None)
    if pair is None:
        return comparison
    turned, open_by = comparison.ids != pair.ids, Reason(ReasonKind.STARTS_NEEDED)
    looked = {(row.level, row.metric): row for row in pair.rows if row.looked}
    rows: list[ComparisonRow] = []
    for row in comparison.rows:
        # a level with a void point may have been decided by the starts before it
        before = [one for one in looked.values() if row.level_missing and one.level == row.level]
        known = [_by_looks(one, one.competes, turned, open_by) for one in before]
        rows += known or [_as_decided(row, looked.get((row.level, row.metric)), turned, open_by)]
    first = None if pair.first is None else _by_looks(pair.first, pair.first.competes, turned, open_by)
    decided = replace(comparison, margin=pair.margin, starts=None, first=first, starts_needed=pair.starts_needed)
    return with_rows(decided, rows, decided=True)


def _as_decided(row: ComparisonRow, looked: ComparisonRow | None, turned: bool, open_by: Reason) -> ComparisonRow:
    if looked is not None:
        return _by_looks(looked, row.competes, turned, open_by)
    if row.metric is FAILED or row.p_corrected is None:
        return row
    # what a test for a fixed number of starts found missing is not what is missing here
    rest = [one for one in row.reasons if one.kind not in MORE_STARTS_HELP]
    return replace(row.judged(OPEN), p_corrected=1.0).because(*dict.fromkeys((open_by, *rest)))


def _by_looks(row: ComparisonRow, competes: bool, turned: bool, open_by: Reason) -> ComparisonRow:
    """The row of the last look as one of the comparison; its p-value only says on which side of the error it is. Whether it
    competes is that of the comparison, which may accept warnings."""
    known = row.result in (EQUAL, NOT_WORSE) or row.result in DIFFERENT
    values = row.starts.first(row.looked) if row.starts is not None and not row.overall else row.starts
    found = replace(
        row.judged(row.result if known else OPEN, bound=row.difference.bound if known and row.difference else None),
        starts=values,
        p_corrected=0.0 if row.result in DIFFERENT else 1.0,
        competes=competes,
    )
    if values is not None and not row.overall:
        means = [float(np.exp(one.mean())) for one in (values.baseline, values.candidate)]
        found = replace(found, baseline=means[0], candidate=means[1])
    found = found.because(*dict.fromkeys((*([open_by] if row.result is OPEN else []), *row.reasons)))
    return found.turned() if turned else found


def _replaced_seconds(run: RunData) -> float:
    """For about how long engines ran for points that other attempts replaced, besides the lives of starts that have points."""
    found = run.requests_with(["point", "sent_ns", "ended_ns"]).dropna()
    gone = found[~found["point"].isin([row.point for row in run.point_rows])].sort_values("sent_ns")
    start_s = mapping(run.manifest.get("cold_start")).get("seconds")
    attempts = [(own[["sent_ns", "ended_ns"]] / NS_PER_S).to_numpy() for _, own in gone.groupby("point", sort=False)]
    return seconds_besides(attempts, engine_lives(run.point_rows), float(start_s) if is_number(start_s) else 0.0)


def seconds_besides(
    attempts: Iterable[NDArray[np.float64]], lives: Iterable[tuple[float, float]], cold_s: float
) -> float:
    """For how long engines ran for attempts, which follow one another and have a begin and an end for each request, besides these
    lives of engines: with requests in flight, and `cold_s` more where there was time for a start of another engine."""
    known, seconds = list(lives), 0.0
    for own in attempts:
        begins_s = own[0, 0]
        alive_s = max((ends for begins, ends in known if begins <= begins_s), default=0.0)
        seconds += covered(np.maximum(own, alive_s).tolist()) + (cold_s if begins_s - alive_s > cold_s else 0.0)
        known.append((begins_s, own[:, 1].max()))
    return seconds
