"""Run the starts of a study in rounds until all its pairs of runs are decided (`study.until=decided`)."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from servebench.analysis.decided import ENDED, StudyDecision, decide_study, study_settings
from servebench.analysis.pairing import engine_lives, seconds_per_start
from servebench.analysis.setups import circumstances, each_starts, pairs_in_turns, runs_alike
from servebench.analysis.verdict.gate import GateQuestion, check_metrics
from servebench.analysis.verdict.looks import looks_until, starts_to_pass
from servebench.config import Job
from servebench.contracts.events import Events, Notice, Said, StartsChosen
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.precision import LOOKS, VOID_ATTEMPTS, seconds_of, share_of
from servebench.contracts.settings import LoadSettings
from servebench.contracts.turns import Turn, closing_turn
from servebench.load.plan.levels import plan_levels, repeats_of
from servebench.load.plan.slices import Rotation
from servebench.report.wording.budget import starts_text
from servebench.report.wording.decisions import foreseen_line, rotation_line, round_line
from servebench.run.prior import has_unmeasured, levels_given_up, without_void
from servebench.run.session import RunTask
from servebench.run.turns import OnEnd, Runs, turn_label
from servebench.store.layout import StudyFolder
from servebench.store.manifest import capture_machine
from servebench.store.state import read_study
from servebench.store.studies import load_outputs, load_study
from servebench.study.at_once import Place, at_once, questions
from servebench.study.outlook import weigh_starts
from servebench.study.resume import StoredRun
from servebench.util.errors import ConfigError
from servebench.util.groups import grouped
from servebench.util.units import NS_PER_S

STARTS_LEAST = 2
"""So many starts are measured even where the second would end after the budget: one each decides nothing."""


def check_decided(jobs: Sequence[Job]) -> None:
    """Check that a study with `study.until=decided` has something to decide. Raises ConfigError with one line."""
    if all(job.settings.study.until is None for job in jobs):
        return
    for key in ("until", "margin", "budget", "metrics", "starts"):
        found = dict.fromkeys(getattr(job.settings.study, key) for job in jobs)
        values = ["null" if value is None else str(value) for value in found]
        if len(values) > 1:
            raise ConfigError(
                f"study.{key}={','.join(values)}: all runs of a study are decided together, so study.until takes one "
                f"study.{key}; give one value, or start a study for each"
            )
    if (metrics := jobs[0].settings.study.metrics) is not None:
        check_metrics("study.metrics", metrics)
    alone = next((group[0] for group in questions(jobs) if len(group) == 1), None)
    if alone is not None:
        raise ConfigError(
            f"study.until={alone.settings.study.until} needs two runs or more with the same model and workload, such as "
            f"-m engine=vllm,sglang (there is no other run for '{alone.title}')"
        )


class UntilDecided(Runs):
    """Executes the runs start by start, in rounds, until every pair is decided, the budget is used up, or each has its most
    starts. A run without open pairs takes no further turns. A failed run does not stop the others.

    All decisions are made from what is on disk, so a study that was killed goes on as if it had not been.
    """

    def __init__(
        self,
        folder: StudyFolder,
        tasks: Sequence[RunTask],
        on_end: OnEnd,
        events: Events,
        places: Mapping[str, Place] | None = None,
    ) -> None:
        """`places` are those of the runs that are executed at once, by run."""
        super().__init__(tasks, on_end)
        self._places = places or {}
        state, self._settings = read_study(folder), tasks[0].job.settings.study
        self._folder, self._events, self._count = folder, events, len(state.runs)
        self._goes_on = state.budget_s is not None
        self._most = LOOKS[-1] if self._goes_on else self._settings.most_starts
        self._earlier = [run for study in load_outputs(folder.path.parent) for run in study.runs]
        self._script = self._rounds()

    def next_turns(self) -> Sequence[Turn]:
        """Return the turns of the next round, or what ends runs; empty when all have ended."""
        return next(self._script, ())

    def decide(self) -> StudyDecision | None:
        """Return what is decided so far, from what is on disk."""
        return decide_study(load_study(self._folder.path), self._earlier)

    def _rounds(self) -> Iterator[Sequence[Turn]]:
        measured = False
        if self._settings.until == "gate" and (found := self.decide()) is None:
            self._events(Said(self._foreseen()))
        for start in range(self._most):
            found = self.decide()
            if found is not None and measured:
                self._events(Said(round_line(found, start)))
            if found is not None and start:
                if start == 1 and measured and not (weighed := self._weighed()).pays:
                    self._events(Said(starts_text(weighed)))
                    break
                decided = [
                    name for name in self.open if not found.open_levels(self._id(name), map(self._id, self.open))
                ]
                if decided and not self._begun(start):
                    yield [self._closing(name) for name in decided]
                least = 1 if self._goes_on or found.engine_s >= found.budget_s else STARTS_LEAST
                if self.open and start >= least and self._too_expensive(found, self.open):
                    self._events(
                        Notice("minutes_spent", note=f"{round(found.budget_s / 60, 1):,g}")
                        if self._goes_on
                        else Notice("budget_spent", note=str(self._settings.budget))
                    )
                    break
            measured = False
            for attempt in range(VOID_ATTEMPTS):
                turns = self._due(start)
                # further attempts replace points that are void
                if not turns or (attempt and not self._replaces(turns)):
                    break
                if start == 1 and not attempt:
                    self._say_rotation()
                measured = True
                yield turns
            if not self.open:
                return
        if self.open:
            yield [self._closing(name) for name in self.open]

    def _foreseen(self) -> str:
        """Say how many starts the gate takes, by earlier starts on this machine."""
        jobs, machine = [task.job for task in self.open.values()], capture_machine()
        known = {circumstances(job.resolved, machine) for job in jobs}
        alike = runs_alike(known, self._earlier)
        limit = share_of("study.margin", self._settings.margin)
        found = pairs_in_turns(alike) if self._places else each_starts(alike)
        needed = starts_to_pass(found, GateQuestion(limit, self._settings.metrics), looks_until(self._most))
        each_s = next((one for run in alike if (one := seconds_per_start(run))), None)
        return foreseen_line(
            limit,
            needed,
            max((sum(len(own.values) for own in each) for each in found.values()), default=0),
            None if each_s is None else each_s * len(jobs),
            seconds_of("study.budget", self._settings.budget),
        )

    def _weighed(self) -> StartsChosen:
        """Weigh the first start against longer points, where the number of starts was left open."""
        if not self._goes_on or self._settings.starts != "auto":
            return StartsChosen()
        return weigh_starts([task.job for task in self.open.values()], load_study(self._folder.path).runs)

    def _due(self, start: int) -> list[Turn]:
        """Return a start of each run in which something is open and not measured."""
        turns = [self._turn(task, start) for task in self.open.values()]
        turns = [turn for turn in turns if self._is_due(turn)]
        settings = [self.open[turn.run].job.settings for turn in turns]
        if settings and all(one.load.order == "shuffled" for one in settings):
            random.Random(f"{settings[0].workload.seed}/{start}").shuffle(turns)
        elif start % 2:
            # linear drift of the machine falls on all runs alike
            turns.reverse()
        return turns

    def _replaces(self, turns: Sequence[Turn]) -> bool:
        """Say that points are void, and return whether the budget has room for a start of each run that replaces them."""
        found = self.decide()
        fits = found is None or not self._too_expensive(found, [turn.run for turn in turns])
        for turn in turns:
            title = self.open[turn.run].job.title
            self._events(Notice("point_replaced" if fits else "point_left", title))
        return fits

    def _too_expensive(self, found: StudyDecision, runs: Iterable[str]) -> bool:
        """Return whether a start of these runs would end after the budget, if starts take as long as the latest ones."""
        seconds = sum(found.start_seconds.get(self._id(name), 0.0) for name in runs)
        return found.engine_s + seconds > found.budget_s

    def _id(self, name: str) -> str:
        return f"{self._folder.name}/{name}"

    def _turn(self, task: RunTask, start: int) -> Turn:
        settings = task.job.settings
        repeats, levels, given_up = repeats_of(settings.load, start), None, levels_given_up(task.earlier)
        rotation = self._rotations.get(task.name) if start else None
        if given_up or rotation is not None:
            listed = {one.id for one in plan_levels(settings.load, settings.workload.seed)}
            due = None if rotation is None else rotation.of_start(start)
            levels = frozenset({one.level for one in listed if due is None or one.load in due} - given_up)
        how: dict[str, Any] = {"first": start == 0, "last": False, "replaces_void": True}
        return at_once(self._labelled(Turn(repeats, task.name, start=start, levels=levels, **how)), self._places)

    @cached_property
    def _rotations(self) -> Mapping[str, Rotation | None]:
        """Which levels the starts after the first have, by run; without one it is all."""
        if self._settings.until != "decided" or not self._places:
            return {}
        stored = {run.name: run.point_rows for run in load_study(self._folder.path).runs}
        groups = {name: one.group for name, one in self._places.items()}
        found = {}
        for name, task in self.open.items():
            together = [one for one, group in groups.items() if group == groups.get(name) and stored.get(one)]
            found[name] = rotation_of([stored[one] for one in together], task.job.settings.load)
        return found

    def _say_rotation(self) -> None:
        fewer = {(one.each, len(one.levels)) for one in self._rotations.values() if one and one.each < len(one.levels)}
        for found in sorted(fewer):
            self._events(Said(rotation_line(*found)))

    def _begun(self, start: int) -> bool:
        """Whether a part of a start is measured, as of a study that was killed meanwhile."""
        return any(
            (point.repeat or 0) in repeats_of(task.job.settings.load, start)
            for task in self.open.values()
            for point in task.earlier.points
        )

    def _closing(self, name: str) -> Turn:
        return self._labelled(closing_turn(name))

    def _labelled(self, turn: Turn) -> Turn:
        return replace(turn, label=turn_label(turn, self._most, int(turn.run.partition("_")[0]), self._count))

    def _is_due(self, turn: Turn) -> bool:
        task = self.open[turn.run]
        return has_unmeasured(task.job.settings, turn, without_void(task.earlier, turn))


def rotation_of(runs: Sequence[Sequence[PointRow]], load: LoadSettings) -> Rotation | None:
    """Return which levels each start of runs that take turns has, by their points: as many as those after the first have, where
    there are several, else by what the first one took; None where less than half of that was measured in slices."""
    starts = grouped((row for own in runs for row in own), lambda row: row.repeat // load.repeats)
    levels, first = [Level(one) for one in load.concurrency or ()], starts.get(0, [])
    windows = [(row.level, *row.window_ns) for row in first if row.window_ns is not None]
    begins_s = [begins for own in runs for begins, _ in engine_lives(own)[:1]]
    in_slices = sum(bool(row.slice_group) for row in first)
    if load.while_growing or not windows or 2 * in_slices < len(first) or len(runs) < 2 or len(begins_s) < len(runs):
        return None
    if len(starts) > 2:
        return Rotation(tuple(sorted(levels)), max(len({row.level for row in own}) for at, own in starts.items() if at))
    began_s = min(begins for _, begins, _ in windows) / NS_PER_S
    ends_s = {
        level: max(ends for _, _, ends in own) / NS_PER_S for level, own in grouped(windows, lambda one: one[0]).items()
    }
    level_s = float(np.median(np.diff(sorted([began_s, *ends_s.values()]))))
    return Rotation.of(levels, began_s - min(begins_s), level_s) if level_s > 0 else None


def open_again(
    folder: StudyFolder, runs: Sequence[StoredRun], more_s: float | None
) -> tuple[Sequence[StoredRun], float | None]:
    """Return the runs of a study, of which finished ones in which something is open are executed again, and for how long its
    engines may run: for `more_s` longer than they have. Without `more_s` the budget stays, and finished runs only go on in a
    study that was cut off. Raises ConfigError with one line where more budget decides nothing.
    """
    state = read_study(folder)
    if all(run.job.settings.study.until is None for run in runs):
        if more_s is not None:
            raise ConfigError(
                f"--budget is for studies with study.until=decided, which {folder.name} has not; leave it out, or set "
                "study.starts in a new study"
            )
        return runs, state.budget_s
    if more_s is None and state.status in ENDED:
        return runs, state.budget_s
    found = decided_of(folder)
    going = [run.name for run in runs if run.execute or run.standing == "finished"]
    ids = {name: f"{folder.name}/{name}" for name in going}
    still_open = {name for name in going if found is not None and found.open_levels(ids[name], ids.values())}
    opened = [replace(run, execute=run.execute or run.name in still_open) for run in runs]
    if more_s is None:
        return opened, state.budget_s
    if not any(run.execute for run in runs):
        if not still_open:
            raise ConfigError(
                f"nothing in {folder.name} is open, so --budget has nothing to decide; see 'servebench compare'"
            )
        if found is not None and not found.below_last_look(ids.values()):
            raise ConfigError(
                f"what is open in {folder.name} has {LOOKS[-1]} starts of each, and nothing is measured after these; measure "
                "longer points, such as with load.until=3%, in a new study"
            )
    return opened, more_s + (0.0 if found is None else found.engine_s)


def decided_of(folder: StudyFolder) -> StudyDecision | None:
    """Return what a stored study has decided; None for one without `study.until=decided`."""
    study = load_study(folder.path)
    if not any(study_settings(run) for run in study.runs):
        return None
    return decide_study(study, [run for one in load_outputs(folder.path.parent) for run in one.runs])
