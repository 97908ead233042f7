"""The answer of a tune: made from the race, written to the study's folder, and printed."""

import json
import math
import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from servebench.analysis.estimate import THROUGHPUT, levels_of, mean_of
from servebench.analysis.tuning.answer import AGAIN_STARTS, Figures, TuneAnswer, answer_of
from servebench.analysis.tuning.candidates import override_words
from servebench.analysis.warnings.catalog import type_of
from servebench.config.tune_space import TuneSpace, load_space, split_words
from servebench.contracts.emulation import imitated
from servebench.contracts.tuning import Candidate
from servebench.registry.registry import Registry
from servebench.report.html.page import tune_page
from servebench.report.wording.tuning import gain_text
from servebench.store.files import writing
from servebench.store.layout import StudyFolder
from servebench.store.state import read_study
from servebench.store.studies import load_run
from servebench.store.tune import TuneState
from servebench.study.show_commands import describe_command, engine_command
from servebench.study.tune_plan import candidate_job
from servebench.study.tune_records import StoredTune, load_tune
from servebench.util.errors import ConfigError, ServebenchError, StoreError
from servebench.util.short_id import short_id

CONF = "conf"
"""The folder in a study with the best candidate's engine file, for --config-dir."""


def write_answer(tune: StoredTune, *, finished: bool) -> TuneAnswer:
    """Write the best candidate's engine file and the page, and return the answer. Raises ConfigError, StoreError, OSError."""
    answer, folder = make_answer(tune, finished=finished), tune.folder
    if answer.engine_file and answer.recommended is not None:
        file, best = Path(answer.engine_file), tune.candidates[answer.recommended]
        if not file.resolve().is_relative_to((_conf(tune) / "engine").resolve()):
            raise StoreError(
                f"{file} is not in the folder for the best candidate's file; choose another engine= in a new tune"
            )
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(engine_file(answer, best), encoding="utf-8")
    with writing(folder.tune_page):
        folder.tune_page.write_text(tune_page(answer), encoding="utf-8")
        (folder.path / "tune_answer.json").write_text(
            json.dumps(asdict(answer), indent=1, default=str) + "\n", encoding="utf-8"
        )
    return answer


def make_answer(tune: StoredTune, *, finished: bool) -> TuneAnswer:
    """Return the answer; writes nothing, and reads no file that the state names unless it is this user's own.

    Raises ConfigError, StoreError.
    """
    race, folder = tune.race, tune.folder
    answer = answer_of(
        race,
        tune.state,
        tune.candidates,
        study=folder.name,
        finished=finished,
        stock_config=tune.stock_job(tune.candidates[race.best or race.stock]).resolved,
        figures={name: figures for name in race.measured if (figures := _figures(folder, name)) is not None},
        spaces=stored_spaces(tune.state, tune.registry).values() if tune.own else (),
    )
    how = imitated(job.settings.launch.name for job in tune.planned.values())
    return _with_commands(replace(answer, imitated=how), tune)


def stored_answer(folder: StudyFolder, registry: Registry) -> TuneAnswer:
    """Return the answer of a stored tune, from what is measured. Raises ConfigError, StoreError."""
    found = load_tune(folder, registry)
    # a newer servebench may have another use for what the budget left
    return make_answer(found, finished=found.race.next_step() is None or read_study(folder).status == "finished")


def stored_spaces(state: TuneState, registry: Registry) -> dict[str, TuneSpace]:
    """Return the space of each engine's option as its file is now; an empty one for a file that is gone."""
    options = dict.fromkeys(one.engine for one in state.candidates)
    found = {option: TuneSpace.model_construct(engine=option, file="", parameters={}) for option in options}
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


def _with_commands(answer: TuneAnswer, tune: StoredTune) -> TuneAnswer:
    """Add the commands that use the best candidate, and the name of its engine file if it needs one."""
    study, trials, made = short_id(tune.folder.name), tune.state.question.trials, read_study(tune.folder).words
    answer = replace(answer, command=shlex.join(["servebench", *made]))
    again = f"servebench tune --continue {study} "
    more = again + ("tune.budget=30m" if trials is None else f"tune.trials={trials}")
    if answer.recommended is None:
        return answer
    best = tune.candidates[answer.recommended]
    stock = tune.stock_job(best)
    try:
        job = candidate_job(stock, best, tune.registry)
    except ConfigError:
        return answer
    with suppress(ServebenchError):
        answer = replace(answer, engine_command=describe_command(engine_command(job.settings, tune.registry)))
    if answer.verdict == "too little":
        minutes, count = math.ceil(answer.least_budget / 60), math.ceil(answer.least_budget)
        more = again + (f"tune.budget={minutes}m" if trials is None else f"tune.trials={count}")
        return replace(answer, next_steps=((more, "enough to compare one candidate with stock"),))
    if answer.verdict in ("stock", "as good"):
        return replace(answer, next_steps=((more, "a longer race"),))
    option = stock.chosen("engine")
    words = [word for word in split_words(made)[1] if word not in ("tune", "-m", "--multirun")]
    rest = [word for word in words if not word.startswith(("engine=", "study.name="))]
    conf = _conf(tune)
    tuned = f"{option}_tuned" if best.settings else option
    known = ["--config-dir", str(conf)] if best.settings else []
    first = tune.state.candidates[0].engine
    # an engine's file holds no other settings
    others = override_words({key: value for key, value in best.settings.items() if not key.startswith("engine.")})
    use = shlex.join(["servebench", *known, f"engine={tuned}", *rest, *others])
    check = shlex.join(["servebench", "-m", *known, f"engine={first},{tuned}", *rest, f"study.starts={AGAIN_STARTS}"])
    checks = () if others else ((check, "the best candidate against stock, measured again"),)
    steps = ((use, "the best candidate"), *checks, (more, "a longer race"))
    file = str(conf / "engine" / f"{tuned}.yaml") if best.settings else ""
    return replace(answer, engine_file=file, next_steps=steps)


def _conf(tune: StoredTune) -> Path:
    """Return the folder for --config-dir in which the best candidate's engine file goes."""
    out = tune.state.question.out
    return Path(out).expanduser().absolute() if out else tune.folder.path / CONF


def engine_file(answer: TuneAnswer, best: Candidate) -> str:
    """Return the best candidate as a file of the config group `engine`."""
    own: dict[str, Any] = {}
    for key, value in best.settings.items():
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
    defaults = f"defaults:\n  - {best.engine}\n  - _self_\n\n"
    return head + defaults + str(yaml.safe_dump(own, sort_keys=False, allow_unicode=True))
