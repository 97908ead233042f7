"""What to run next: what is missing, what would settle doubts, what shows more."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence

from servebench.analysis.answer.model import LevelLead, NextStep, Purpose, WorkloadAnswer
from servebench.analysis.decided import StudyDecision
from servebench.analysis.fairness import SettingDifference, varying_of
from servebench.analysis.pairing import seconds_per_start
from servebench.analysis.verdict.compare import STARTS_ADVISED
from servebench.analysis.warnings.catalog import is_wide, type_of
from servebench.config.overrides import parse_arguments
from servebench.contracts.level import REQUESTS_PER_STREAM
from servebench.contracts.stored import RunData, is_number, mapping
from servebench.registry.shorthand import spelled_out
from servebench.util.errors import remedy_of

UNFINISHED = frozenset({"interrupted", "missing", "running"})
SPARE = 1.1
"""The budget that is proposed, as a share of the predicted engine time: a round that does not fit is not begun."""
NOT_THE_SETUP = frozenset({"load", "study", "quality", "slo"})
"""Config groups that do not say which engine is measured, or how it is started."""
LONGER = 2.0
"""How many times as long `servebench resume --better` measures, where a point has enough requests for its level."""
HALVES = 4
"""How many times as long a point takes for an interval half as wide."""


def decide_step(decision: StudyDecision, name: str) -> NextStep | None:
    """Return the command with which a study that has ended decides what is open; None where no start is foreseen to do that."""
    more = decision.more_starts() if decision.ended else None
    if more is None:
        return None
    starts, seconds = more
    return NextStep(
        command=f"servebench resume {name} --budget {max(1, math.ceil(seconds * SPARE / 60))}m",
        purposes=(Purpose.DECIDE,),
        count=starts,
        seconds=seconds,
    )


def next_steps(
    runs: Sequence[RunData],
    workloads: Sequence[WorkloadAnswer],
    name: str,
    words: Sequence[str],
    decision: StudyDecision | None = None,
    *,
    unequal: Iterable[SettingDifference] = (),
) -> Iterable[NextStep]:
    """Yield what to run next: what is missing, then what would decide and settle doubts, then what shows more."""
    statuses = {run.status for run in runs}
    todo = [Purpose.FINISH] if statuses & UNFINISHED else []
    remedies = {remedy_of(run.failure) for run in runs if run.status == "failed"}
    todo += [Purpose.TRY_AGAIN] if remedies - {"mend"} else []
    if todo:
        failed = " --failed" if "again" in remedies else ""
        yield NextStep(command=f"servebench resume {name}{failed}", purposes=tuple(todo), continues=True)
    if "mend" in remedies and words:
        todo.append(Purpose.MEND)
        yield NextStep(command=command_again(words), purposes=(Purpose.MEND,), continues=True)
    if decision is not None and (step := decide_step(decision, name)) is not None:
        yield step
    # where no request succeeded, a longer measurement would not either
    doubtful = [row for run in runs for row in run.point_rows if row.verdict != "valid" and row.requests_ok != 0]
    again = sum(needs_again(row.verdict, row.doubts) for row in doubtful)
    # points of a study that is not whole are measured first
    if again and not {Purpose.FINISH, Purpose.TRY_AGAIN} & set(todo):
        yield NextStep(
            command=f"servebench resume {name} --better",
            purposes=(Purpose.BETTER,),
            count=again,
            of=len(doubtful),
            seconds=sum(map(_better_s, runs)),
            requests=_requests_again(runs),
        )
    if decision is None and words and not todo and (step := _starts_step(runs, workloads, words)) is not None:
        yield step
    cells = (cell for one in workloads for column in one.columns for cell in column.cells.values())
    if len(runs) == 1 and not (todo or again) and any(cell.wide and cell.verdict != "void" for cell in cells):
        yield from filter(None, [_narrower_step(runs[0])])
    if varying := varying_of(unequal):
        yield NextStep(command=f"servebench compare {name} --varying '{varying}'", purposes=(Purpose.ACCEPT,))
    if sum(bool(run.point_rows) for run in runs) > 1 and not todo:
        yield NextStep(command=f"servebench recommend {name}", purposes=(Purpose.CHOOSE,))
    if any(run.point_rows for run in runs):
        yield NextStep(command=f"servebench report {name} --open", purposes=(Purpose.CHARTS,))


def longer_keys(runs: Sequence[RunData], keys: str) -> dict[str, float]:
    """Return which of some keys have one value in all runs that makes intervals narrower where it is raised, with that value."""
    loads = [mapping(run.config.get("load")) for run in runs]
    in_slices = any(row.slices for run in runs for row in run.point_rows)
    if all(load.get("until") for load in loads) and not in_slices:
        keys = "load.max_duration_s"
    found = {key: [load.get(key.partition(".")[2]) for load in loads] for key in keys.split(" or ")}
    return {key: one for key, (one, *rest) in found.items() if is_number(one) and rest.count(one) == len(rest)}


def _narrower_step(run: RunData) -> NextStep | None:
    """The command that measures the points of a run HALVES times as long, or until they are precise; None where none is wide, or
    a command made it with others."""
    limits = [one.wide for row in run.point_rows for one in map(type_of, row.doubts) if one.wide]
    found = longer_keys([run], limits[0][1]) if limits else {}
    if not found or not run.command or parse_arguments(run.words).multirun:
        return None
    key, value = next(iter(found.items()))
    longer = {row.point: HALVES if key != "load.max_duration_s" or is_wide(row.doubts) else 1 for row in run.point_rows}
    rest = [word for word in run.words if spelled_out([word])[-1].lstrip("+").partition("=")[0] != key]
    command = f"{command_again(rest)} {key}={HALVES * value:g}"
    return NextStep(command=command, purposes=(Purpose.NARROWER,), seconds=_again_s(run, longer))


def command_again(words: Sequence[str]) -> str:
    """Return the command of a study, to run it once more: a name can be given only once."""
    return shlex.join(["servebench", *(word for word in words if not word.startswith("study.name="))])


def long_command(run: RunData) -> str:
    """Return the command that measures a long point of a run's engine, which later intervals rest on (`load=long`)."""
    given = run.manifest.get("overrides")
    words = [str(one) for one in given] if isinstance(given, list | tuple) else []
    kept = [one for one in words if one.lstrip("+~").partition("=")[0].partition(".")[0] not in NOT_THE_SETUP]
    folders = [f"--config-dir={one}" for one in parse_arguments(run.words).config_dirs]
    return command_again([*folders, *kept, "load=long"])


def _starts_step(runs: Sequence[RunData], workloads: Sequence[WorkloadAnswer], words: Sequence[str]) -> NextStep | None:
    if not any(more_starts_help(lead, once=one_start(runs)) for one in workloads for lead in one.leads):
        return None
    same = [word for word in words if not word.startswith(("study.starts=", "starts="))]
    if not one_start(runs):
        return NextStep(command=f"{command_again(same)} study.until=decided", purposes=(Purpose.UNTIL_DECIDED,))
    each = [seconds_per_start(run) for run in runs]
    return NextStep(
        command=f"{command_again(same)} study.starts={STARTS_ADVISED}",
        purposes=(Purpose.MORE_STARTS,),
        count=STARTS_ADVISED,
        seconds=STARTS_ADVISED * sum(one or 0.0 for one in each) if None not in each else None,
    )


def more_starts_help(lead: LevelLead, *, once: bool) -> bool:
    """Return whether more starts may decide who leads at a level: not where that is decided, or where it is warnings or unequal
    settings (which one start each, `once`, leaves aside) that refuse a verdict."""
    return not lead.verdict and lead.within is None and (once or not (lead.codes or lead.unequal))


def one_start(runs: Sequence[RunData]) -> bool:
    """Return whether each run was measured on one start of its engine."""
    return all(len({row.start_id for row in run.point_rows}) <= 1 for run in runs)


def needs_again(verdict: str | None, codes: Iterable[str]) -> bool:
    """Return whether a longer measurement may settle what makes a point doubtful or void."""
    found = [type_of(code) for code in codes]
    return verdict != "valid" and any(one.longer for one in found) and not any(one.engine_gone for one in found)


def longer_requests(requests: int, concurrency: Sequence[int] | None, *, attempts: int = 1) -> int:
    """Return how many requests a point of a fixed number has after this many attempts: LONGER times as many as in the attempt
    before, and in the first enough for a level that would not be reached."""
    most, first = max(concurrency or (), default=0), int(LONGER * requests)
    return (first if first >= most else REQUESTS_PER_STREAM * most) * int(LONGER ** (attempts - 1))


def _fixed_requests(run: RunData) -> tuple[int, int] | None:
    """The fixed number of requests of each point of a run, and that with which `--better` measures it; None without one."""
    load = mapping(run.config.get("load"))
    requests, levels = load.get("requests"), load.get("concurrency")
    if not isinstance(requests, int) or requests < 1:
        return None
    known = [one for one in levels if isinstance(one, int)] if isinstance(levels, list | tuple) else []
    return requests, longer_requests(requests, known)


def _requests_again(runs: Sequence[RunData]) -> int | None:
    """The most requests that `--better` measures a point with, where that is more than LONGER times as many as before."""
    doubtful = [run for run in runs if any(needs_again(row.verdict, row.doubts) for row in run.point_rows)]
    found = [fixed for run in doubtful if (fixed := _fixed_requests(run)) is not None]
    return max((after for before, after in found if after > LONGER * before), default=None)


def _better_s(run: RunData) -> float:
    """About how long it takes to measure the doubtful points of a run again."""
    before, after = _fixed_requests(run) or (1, LONGER)
    return _again_s(run, {r.point: after / before for r in run.point_rows if needs_again(r.verdict, r.doubts)})


def _again_s(run: RunData, longer: Mapping[str, float]) -> float:
    """About how long it takes to measure points of a run again, each so many times as long: the share of their windows in what a
    start of the run took, and the start of its engine."""
    windows = {row.point: row.window_s or 0.0 for row in run.point_rows}
    again = sum(windows[point] * times for point, times in longer.items())
    if not again:
        return 0.0
    start_s = mapping(run.manifest.get("cold_start")).get("seconds")
    each_s = seconds_per_start(run) or 0.0
    # a simulated engine starts on a virtual clock: its start takes no longer than the run did
    began = min(float(start_s), each_s) if isinstance(start_s, (int, float)) else 0.0
    took_s = each_s * len({row.start_id for row in run.point_rows})
    return began + max(again, (took_s - began) * again / sum(windows.values()))
