"""The answer of a tune: made from the race, written to the study's folder, and printed."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from servebench.analysis.tuning.answer import Figures, TuneAnswer, answer_of
from servebench.analysis.tuning.race import Race
from servebench.config import Job
from servebench.config.tuning import load_space, split_words
from servebench.contracts.tuning import Candidate, TuneSpace
from servebench.engine.describe import describe_command
from servebench.registry.registry import Registry
from servebench.report.html.tuning import tune_page
from servebench.report.terminal.display import Display
from servebench.store.files import writing
from servebench.store.layout import StudyFolder
from servebench.store.state import read_study
from servebench.store.studies import load_run
from servebench.store.tune import TuneState
from servebench.study.show_commands import engine_commands
from servebench.study.tune_plan import candidate_job, take_backs_of
from servebench.study.tune_records import load_tune
from servebench.util.errors import ConfigError, ServebenchError
from servebench.util.short_id import short_id

CONF = "conf"
"""The folder in a study with the winner's engine file, for --config-dir."""


def write_answer(
    folder: StudyFolder, race: Race, state: TuneState, planned: Mapping[str, Job], registry: Registry, *, finished: bool
) -> TuneAnswer:
    """Write the winner's engine file and the page, and return the answer. Raises StoreError, OSError."""
    candidates = _all_candidates(state)
    stock = planned[state.candidates[0].run]
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
        spaces=_spaces(state, registry),
    )
    answer = _with_commands(answer, folder, state, planned, registry)
    with writing(folder.tune_page):
        folder.tune_page.write_text(tune_page(answer), encoding="utf-8")
        (folder.path / "tune_answer.json").write_text(to_json(answer) + "\n", encoding="utf-8")
    return answer


def stored_answer(folder: StudyFolder, registry: Registry) -> TuneAnswer:
    """Return the answer of a stored tune, from what is measured. Raises ConfigError, StoreError, OSError."""
    found = load_tune(folder, registry)
    over = found.race.next_step() is None
    return write_answer(folder, found.race, found.state, found.planned, registry, finished=over)


def print_tune(answer: TuneAnswer, display: Display) -> None:
    """Print the answer on one screen."""
    display.tuning(answer, to_json(answer))


def to_json(answer: TuneAnswer) -> str:
    """Return the answer as JSON."""
    return json.dumps(asdict(answer), indent=1, default=str)


def _all_candidates(state: TuneState) -> dict[str, Candidate]:
    found = {one.run: one.candidate for one in state.candidates}
    return found | {each.run: each.candidate for one in state.candidates for each in take_backs_of(one)}


def _spaces(state: TuneState, registry: Registry) -> list[TuneSpace]:
    """The spaces as they are now; none of a file that is gone."""
    engines = dict.fromkeys(one.candidate.engine for one in state.candidates)
    found = []
    for engine, file in zip(engines, state.spaces, strict=False):
        with suppress(ConfigError):
            found.append(load_space(engine, registry, path=file))
    return found


def _figures(folder: StudyFolder, name: str) -> Figures | None:
    rows = load_run(folder.run(name).path).point_rows
    busiest = max((one.concurrency or one.rate or 0 for one in rows), default=0)
    own = [one for one in rows if (one.concurrency or one.rate or 0) == busiest]
    if not own:
        return None
    throughput = [one.output_throughput_tok_s for one in own if one.output_throughput_tok_s]
    ttft = [one.ttft_ms_p50 for one in own if one.ttft_ms_p50 is not None]
    return Figures(
        throughput=fmean(throughput) if throughput else None,
        ttft_ms=fmean(ttft) if ttft else None,
        void=sum(one.verdict == "void" for one in own),
    )


def _with_commands(
    answer: TuneAnswer, folder: StudyFolder, state: TuneState, planned: Mapping[str, Job], registry: Registry
) -> TuneAnswer:
    """Write the engine file of a winner that is not stock, and add the commands that use it."""
    more = f"servebench tune --continue {short_id(folder.name)} tune.budget=30m"
    if state.question.trials is not None:
        more = f"servebench tune --continue {short_id(folder.name)} tune.trials={state.question.trials}"
    if answer.winner is None:
        return answer
    winner = _all_candidates(state)[answer.winner]
    stock = next(planned[one.run] for one in state.candidates if one.candidate.engine == winner.engine)
    job = candidate_job(stock, winner, registry)
    if isinstance(job, str):
        return answer
    with suppress(ServebenchError):
        lines = [describe_command(command) for command in engine_commands(job.settings, registry)]
        answer = replace(answer, engine_command=lines[-1] if lines else "")
    if answer.verdict == "too little":
        unit = f"tune.budget={math.ceil(answer.least_budget / 60)}m"
        key = unit if state.question.trials is None else f"tune.trials={math.ceil(answer.least_budget)}"
        return replace(
            answer, next_steps=((f"servebench tune --continue {short_id(folder.name)} {key}", "enough for one"),)
        )
    if not winner.settings or answer.verdict == "as good":
        return replace(answer, next_steps=((more, "more starts, and more candidates"),))
    option = stock.chosen("engine")
    conf = Path(state.question.out).expanduser() if state.question.out else folder.path / CONF
    file = conf / "engine" / f"{option}_tuned.yaml"
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(engine_file(answer, option, winner), encoding="utf-8")
    words = [word for word in split_words(read_study(folder).words)[1] if word not in ("tune", "-m", "--multirun")]
    rest = [word for word in words if not word.startswith(("engine=", "study.name="))]
    use = shlex.join(["servebench", "--config-dir", str(conf), f"engine={option}_tuned", *rest])
    check = shlex.join(
        ["servebench", "-m", "--config-dir", str(conf), f"engine={option},{option}_tuned", *rest, "study.starts=3"]
    )
    steps = ((use, "the winner"), (check, "the winner against stock, measured again"), (more, "a longer race"))
    return replace(answer, engine_file=str(file), next_steps=steps)


def engine_file(answer: TuneAnswer, option: str, winner: Candidate) -> str:
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
    gain = f" ({answer.gain.text} over stock)" if answer.gain is not None else ""
    head = f"# The settings that 'servebench tune' found best in {answer.study}{gain}:\n"
    head += f"# {answer.objective.name} at {', '.join(f'{one:g}' for one in answer.levels)}.\n"
    defaults = f"defaults:\n  - {option}\n  - _self_\n\n"
    return head + defaults + str(yaml.safe_dump(own, sort_keys=False, allow_unicode=True))
