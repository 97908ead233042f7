"""The answer of a tune: made from the race, written to the study's folder, and printed."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from servebench.analysis.estimate import THROUGHPUT, levels_of, mean_of
from servebench.analysis.tuning.answer import Figures, TuneAnswer, answer_of
from servebench.analysis.tuning.candidates import override_words
from servebench.analysis.tuning.race import Race
from servebench.analysis.warnings.catalog import type_of
from servebench.config import Job
from servebench.config.tuning import load_space, split_words
from servebench.contracts.emulation import imitated
from servebench.contracts.tuning import Candidate, TuneSpace
from servebench.engine.describe import describe_command
from servebench.registry.registry import Registry
from servebench.report.html.page import tune_page
from servebench.report.wording.tuning import gain_text
from servebench.store.files import writing
from servebench.store.layout import StudyFolder
from servebench.store.state import read_study
from servebench.store.studies import load_run
from servebench.store.tune import TuneState
from servebench.study.show_commands import engine_commands
from servebench.study.tune_plan import candidate_job, take_backs_of
from servebench.study.tune_records import load_tune
from servebench.util.errors import ConfigError, ServebenchError, StoreError
from servebench.util.short_id import short_id

CONF = "conf"
"""The folder in a study with the winner's engine file, for --config-dir."""


def write_answer(
    folder: StudyFolder, race: Race, state: TuneState, planned: Mapping[str, Job], registry: Registry, *, finished: bool
) -> TuneAnswer:
    """Write the winner's engine file and the page, and return the answer. Raises StoreError, OSError."""
    answer = make_answer(folder, race, state, planned, registry, finished=finished)
    if answer.engine_file and answer.recommended is not None:
        file, winner = Path(answer.engine_file), _all_candidates(state)[answer.recommended]
        if not file.resolve().is_relative_to((_conf(folder, state) / "engine").resolve()):
            raise StoreError(f"{file} is not in the folder for the winner's file; choose another engine= in a new tune")
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(engine_file(answer, winner), encoding="utf-8")
    with writing(folder.tune_page):
        folder.tune_page.write_text(tune_page(answer), encoding="utf-8")
        (folder.path / "tune_answer.json").write_text(
            json.dumps(asdict(answer), indent=1, default=str) + "\n", encoding="utf-8"
        )
    return answer


def _command(folder: StudyFolder) -> str:
    """Return the command that made a study; empty where its state cannot be read."""
    try:
        return f"servebench {shlex.join(read_study(folder).words)}"
    except ServebenchError:
        return ""


def make_answer(
    folder: StudyFolder,
    race: Race,
    state: TuneState,
    planned: Mapping[str, Job],
    registry: Registry,
    *,
    finished: bool,
    own: bool = True,
) -> TuneAnswer:
    """Return the answer; writes nothing, and reads no file that the state names unless it is this user's `own`.

    Raises StoreError.
    """
    candidates = _all_candidates(state)
    stock = _stock_of(state, planned, race.winner or race.stock)
    answer = answer_of(
        race,
        candidates,
        study=folder.name,
        question=state.question,
        levels=state.levels,
        finished=finished,
        stock_config=stock.resolved,
        figures={name: figures for name in race.measured if (figures := _figures(folder, name)) is not None},
        refused=[(one.candidate.name, one.why) for one in state.refused],
        space_size=state.space_size,
        spaces=list(stored_spaces(state, registry).values()) if own else [],
    )
    how = imitated(job.settings.launch.name for job in planned.values())
    return _with_commands(replace(answer, command=_command(folder), imitated=how), folder, state, planned, registry)


def _stock_of(state: TuneState, planned: Mapping[str, Job], run: str) -> Job:
    """Return the stock job of a candidate's engine."""
    stock = planned.get(state.stock_of(_all_candidates(state)[run]).run)
    if stock is None:
        raise StoreError(f"the plan of the tune has no stock settings for {run}")
    return stock


def stored_answer(folder: StudyFolder, registry: Registry) -> TuneAnswer:
    """Return the answer of a stored tune, from what is measured. Raises ConfigError, StoreError."""
    found = load_tune(folder, registry)
    # a newer servebench may have another use for what the budget left
    over = found.race.next_step() is None or read_study(folder).status == "finished"
    return make_answer(folder, found.race, found.state, found.planned, registry, finished=over, own=found.own)


def _all_candidates(state: TuneState) -> dict[str, Candidate]:
    found = {one.run: one.candidate for one in state.candidates}
    return found | {each.run: each.candidate for one in state.candidates for each in take_backs_of(one)}


def stored_spaces(state: TuneState, registry: Registry) -> dict[str, TuneSpace]:
    """Return the space of each engine's option as its file is now; none of a file that is gone."""
    options = dict.fromkeys(one.candidate.engine for one in state.candidates)
    found = {}
    for option, file in zip(options, state.spaces, strict=False):
        with suppress(ConfigError):
            found[option] = load_space(option, registry, path=file)
    return found


def _figures(folder: StudyFolder, name: str) -> Figures | None:
    rows = load_run(folder.run(name).path).point_rows
    if not rows:
        return None
    level, own = list(levels_of(rows).items())[-1]
    void = sum(row.verdict == "void" and row.level == level for row in rows)
    codes = (
        code
        for row in rows
        if row.verdict == "doubtful"
        for code in dict.fromkeys(row.doubts)
        if not type_of(code).mark
    )
    return Figures(
        throughput=mean_of(own, THROUGHPUT),
        ttft_ms=mean_of(own, "ttft_ms_p50"),
        void=void,
        # before Python 3.12 `asdict` makes counted pairs of what is in a Counter
        doubts=dict(Counter(codes)),
    )


def _with_commands(
    answer: TuneAnswer, folder: StudyFolder, state: TuneState, planned: Mapping[str, Job], registry: Registry
) -> TuneAnswer:
    """Add the commands that use the winner, and the name of its engine file if it needs one."""
    study = short_id(folder.name)
    trials = state.question.trials
    more = f"servebench tune --continue {study} {'tune.budget=30m' if trials is None else f'tune.trials={trials}'}"
    if answer.recommended is None:
        return answer
    winner, stock = _all_candidates(state)[answer.recommended], _stock_of(state, planned, answer.recommended)
    job = candidate_job(stock, winner, registry)
    if isinstance(job, str):
        return answer
    with suppress(ServebenchError):
        lines = [describe_command(command) for command in engine_commands(job.settings, registry)]
        answer = replace(answer, engine_command=lines[-1] if lines else "")
    if answer.verdict == "too little":
        least = math.ceil(answer.least_budget / 60) if trials is None else math.ceil(answer.least_budget)
        more = f"servebench tune --continue {study} " + (
            f"tune.budget={least}m" if trials is None else f"tune.trials={least}"
        )
        return replace(answer, next_steps=((more, "enough to compare one candidate with stock"),))
    if answer.verdict in ("stock", "as good"):
        return replace(answer, next_steps=((more, "a longer race"),))
    option = stock.chosen("engine")
    words = [word for word in split_words(read_study(folder).words)[1] if word not in ("tune", "-m", "--multirun")]
    rest = [word for word in words if not word.startswith(("engine=", "study.name="))]
    conf = _conf(folder, state)
    tuned = f"{option}_tuned" if winner.settings else option
    known = ["--config-dir", str(conf)] if winner.settings else []
    first = state.candidates[0].candidate.engine
    # an engine's file holds no other settings
    others = override_words({key: value for key, value in winner.settings.items() if not key.startswith("engine.")})
    use = shlex.join(["servebench", *known, f"engine={tuned}", *rest, *others])
    check = shlex.join(["servebench", "-m", *known, f"engine={first},{tuned}", *rest, "study.starts=3"])
    again = () if others else ((check, "the winner against stock, measured again"),)
    steps = ((use, "the winner"), *again, (more, "a longer race"))
    file = str(conf / "engine" / f"{tuned}.yaml") if winner.settings else ""
    return replace(answer, engine_file=file, next_steps=steps)


def _conf(folder: StudyFolder, state: TuneState) -> Path:
    """Return the folder for --config-dir in which the winner's engine file goes."""
    return Path(state.question.out).expanduser().absolute() if state.question.out else folder.path / CONF


def engine_file(answer: TuneAnswer, winner: Candidate) -> str:
    """Return the winner as a file of the config group `engine`."""
    own: dict[str, Any] = {}
    for key, value in winner.settings.items():
        group, _, rest = key.partition(".")
        if group == "engine":
            inner, _, flag = rest.partition(".")
            if flag:
                own.setdefault(inner, {})[flag] = value
            else:
                own[rest] = value
    gain = f" ({gain_text(answer.gain)} over stock)" if answer.gain is not None else ""
    head = f"# The settings that 'servebench tune' found best in {answer.study}{gain}:\n"
    head += f"# {answer.objective.name} at {', '.join(f'{one:g}' for one in answer.levels)}.\n"
    defaults = f"defaults:\n  - {winner.engine}\n  - _self_\n\n"
    return head + defaults + str(yaml.safe_dump(own, sort_keys=False, allow_unicode=True))
