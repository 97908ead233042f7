"""Run the starts of a study in rounds until all its pairs of runs are decided (`study.until=decided`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from servebench.analysis.decided import StudyDecision, decide_study, same_question, starts_allowed, study_settings
from servebench.config import Job
from servebench.contracts.cluster import ClusterSettings
from servebench.contracts.events import Events, Said
from servebench.contracts.level import Level
from servebench.contracts.notices import BudgetSpent, PointVoid, Void
from servebench.contracts.precision import LOOKS, VOID_ATTEMPTS
from servebench.contracts.results import RunOutcome
from servebench.contracts.settings import RunSettings
from servebench.load.plan.levels import plan_levels, repeats_of
from servebench.report.wording.decisions import round_line
from servebench.run.prior import has_unmeasured, levels_given_up, without_void
from servebench.run.session import Turn
from servebench.run.task import RunTask
from servebench.run.turns import ExecuteRun, turn_label
from servebench.store.layout import StudyFolder
from servebench.store.state import read_study
from servebench.store.studies import load_outputs, load_study
from servebench.study.resume import Remaining
from servebench.util.errors import ConfigError

STARTS_LEAST = 2
ENDED = ("finished", "failed")
"""The status of a study that was not cut off."""


def check_decided(jobs: Sequence[Job], cluster: ClusterSettings | None) -> None:
    """Check that a study with `study.until=decided` has something to decide. Raises ConfigError with one line."""
    if all(job.settings.study.until is None for job in jobs):
        return
    for key in ("until", "margin", "budget", "starts"):
        found = dict.fromkeys(getattr(job.settings.study, key) for job in jobs)
        values = ["null" if value is None else str(value) for value in found]
        if len(values) > 1:
            raise ConfigError(
                f"study.{key}={','.join(values)}: all runs of a study are decided together, so study.until=decided takes one "
                f"study.{key}; give one value, or start a study for each"
            )
    if cluster is not None:
        raise ConfigError(
            "study.until=decided does not work on a cluster, where each run does all its starts at once; leave out "
            "hydra/launcher, or set study.starts instead"
        )
    alone = [
        job
        for job in jobs
        if not any(other is not job and same_question(job.resolved, other.resolved) for other in jobs)
    ]
    if alone:
        raise ConfigError(
            f"study.until=decided needs two runs or more with the same model and workload, such as -m engine=vllm,sglang "
            f"(there is no other run for '{alone[0].title}')"
        )


@dataclass
class _Rounds:
    """The runs that are not decided yet, by name, with what they have measured."""

    folder: StudyFolder
    execute: ExecuteRun
    on_end: Callable[[str, RunOutcome], None]
    count: int
    most: int
    decide: Callable[[], StudyDecision | None]
    events: Events
    open: dict[str, RunTask]
    measured: bool = field(default=False, init=False)
    """Whether the latest round measured anything."""

    def run(self, start: int, found: StudyDecision | None) -> bool:
        """Execute one start of each run for what is still open. Returns whether the study was interrupted."""
        self.measured = False
        if start >= STARTS_LEAST and found is not None:
            decided = [name for name in self.open if not self._open_levels(name, found)]
            if self.close(decided):
                return True
        for attempt in range(VOID_ATTEMPTS):
            turns = [(name, self._turn(task, start, found)) for name, task in self.open.items()]
            turns = [(name, turn) for name, turn in turns if self._is_due(name, turn)]
            # further attempts replace points that are void
            if not turns or (attempt and not self._replaces(turns)):
                return False
            if self._execute_turns(start, turns):
                return True
        return False

    def _replaces(self, turns: Sequence[tuple[str, Turn]]) -> bool:
        """Say that points are void, and return whether the budget has room for a start of each run that replaces them."""
        found = self.decide()
        seconds = sum(found.start_seconds.get(self._id(name), 0.0) for name, _ in turns) if found is not None else 0.0
        fits = found is None or found.engine_s + seconds <= found.budget_s
        for name, _ in turns:
            self.events(PointVoid(self.open[name].job.title, Void.ANOTHER_START if fits else Void.NO_BUDGET))
        return fits

    def _execute_turns(self, start: int, turns: list[tuple[str, Turn]]) -> bool:
        """Execute these turns of one round. Returns whether the study was interrupted."""
        settings = [self.open[name].job.settings for name, _ in turns]
        if settings and all(one.load.order == "shuffled" for one in settings):
            random.Random(f"{settings[0].workload.seed}/{start}").shuffle(turns)
        elif start % 2:
            # linear drift of the machine falls on all runs alike
            turns.reverse()
        for number, (name, turn) in enumerate(turns):
            following = self.open[turns[number + 1][0]].job.settings if number + 1 < len(turns) else None
            self.measured = True
            if self._execute(name, turn, following):
                return True
        return False

    def close(self, names: Sequence[str]) -> bool:
        """End these runs with what they have. Returns whether the study was interrupted."""
        return any(self._execute(name, Turn(range(0), first=False, last=True), None) for name in names)

    def too_expensive(self, found: StudyDecision) -> bool:
        """Return whether another round would end after the budget, if starts take as long as the latest ones."""
        ids = [self._id(name) for name in self.open]
        return found.engine_s + sum(found.start_seconds.get(one, 0.0) for one in ids) > found.budget_s

    def _id(self, name: str) -> str:
        return f"{self.folder.name}/{name}"

    def _open_levels(self, name: str, found: StudyDecision) -> set[Level]:
        return found.open_levels(self._id(name), map(self._id, self.open))

    def _turn(self, task: RunTask, start: int, found: StudyDecision | None) -> Turn:
        settings = task.job.settings
        turn = Turn(repeats_of(settings.load, start), first=start == 0, last=False, start=start)
        given_up = levels_given_up(task.earlier)
        all_open = start < STARTS_LEAST or found is None or settings.load.trace is not None
        if found is None or (all_open and not given_up):
            return turn
        still_open = self._open_levels(task.name, found)
        listed = plan_levels(settings.load, settings.workload.seed)
        levels = {one.id.level for one in listed if all_open or Level(one.concurrency, one.rate) in still_open}
        return replace(turn, levels=frozenset(levels - given_up))

    def _is_due(self, name: str, turn: Turn) -> bool:
        task = self.open[name]
        return has_unmeasured(task.job.settings, turn, without_void(task.earlier, turn))

    def _execute(self, name: str, turn: Turn, following: RunSettings | None) -> bool:
        """Execute a turn of a run. Returns whether it was interrupted."""
        task = self.open[name]
        task = replace(task, turn=turn, earlier=without_void(task.earlier, turn))
        index = int(name.partition("_")[0])
        label = turn_label(index, self.count, turn, self.most)
        outcome = self.execute(task, following, label)
        if outcome.status == "finished" and not turn.last:
            self.open[name] = replace(task, earlier=task.earlier.after(outcome))
            return False
        del self.open[name]
        self.on_end(name, outcome)
        return outcome.status == "interrupted"


def execute_until_decided(
    folder: StudyFolder,
    tasks: Sequence[RunTask],
    execute: ExecuteRun,
    on_end: Callable[[str, RunOutcome], None],
    events: Events,
) -> bool:
    """Execute the runs start by start, in rounds, until every pair is decided at every level, the budget is used up, or each
    has its most starts. What is decided is not measured again. A failed run does not stop the others.

    All decisions are made from what is on disk, so a study that was killed goes on as if it had not been. Calls `on_end` for
    each run that has ended. Returns whether a run was interrupted, which stops the study.
    """
    state, settings = read_study(folder), tasks[0].job.settings.study
    most = starts_allowed(settings, goes_on=state.budget_s is not None)
    earlier = [run for study in load_outputs(folder.path.parent) for run in study.runs]

    def decide() -> StudyDecision | None:
        return decide_study(load_study(folder.path), earlier)

    todo = {task.name: task for task in tasks}
    rounds = _Rounds(folder, execute, on_end, len(state.runs), most, decide, events, todo)
    for start in range(rounds.most):
        found = decide()
        if found is not None and rounds.measured:
            events(Said(round_line(found, start)))
        if found is not None and start >= STARTS_LEAST and rounds.too_expensive(found):
            added = state.budget_s is not None
            events(BudgetSpent(minutes=found.budget_s / 60) if added else BudgetSpent(setting=str(settings.budget)))
            break
        if rounds.run(start, found):
            return True
        if not rounds.open:
            return False
    return rounds.close(list(rounds.open))


def open_again(folder: StudyFolder, remaining: Remaining, more_s: float | None) -> tuple[Remaining, float | None]:
    """Return what is left of a study with the finished runs in which something is open, and for how long its engines may run:
    for `more_s` longer than they have. Without `more_s` the budget stays, and finished runs only go on in a study that was cut
    off. Raises ConfigError with one line where more budget decides nothing.
    """
    state = read_study(folder)
    if all(run.job.settings.study.until is None for run in remaining.runs):
        if more_s is not None:
            raise ConfigError(
                f"--budget is for studies with study.until=decided, which {folder.name} has not; leave it out, or set "
                "study.starts in a new study"
            )
        return remaining, state.budget_s
    if more_s is None and state.status in ENDED:
        return remaining, state.budget_s
    found = decided_of(folder)
    going = [run.name for run in remaining.runs if run.execute or run.standing == "finished"]
    ids = {name: f"{folder.name}/{name}" for name in going}
    still_open = {name for name in going if found is not None and found.open_levels(ids[name], ids.values())}
    runs = tuple(replace(run, execute=run.execute or run.name in still_open) for run in remaining.runs)
    if more_s is None:
        return Remaining(runs=runs), state.budget_s
    if not any(run.execute for run in remaining.runs):
        if not still_open:
            raise ConfigError(
                f"nothing in {folder.name} is open, so --budget has nothing to decide; see 'servebench compare'"
            )
        if found is not None and not found.below_last_look(ids.values()):
            raise ConfigError(
                f"what is open in {folder.name} has {LOOKS[-1]} starts of each, and nothing is measured after these; measure "
                "longer points, such as with load.until=3%, in a new study"
            )
    return Remaining(runs=runs), more_s + (0.0 if found is None else found.engine_s)


def decided_of(folder: StudyFolder) -> StudyDecision | None:
    """Return what a stored study has decided; None for one without `study.until=decided`."""
    study = load_study(folder.path)
    if not any(study_settings(run) for run in study.runs):
        return None
    return decide_study(study, [run for one in load_outputs(folder.path.parent) for run in one.runs])
