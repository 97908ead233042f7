"""`servebench run`, the default command, `demo` and `tune`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from servebench.cli.command import FILE, config_dir_option, define, session_options, trust_option, words_argument
from servebench.util.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from servebench.contracts.events import Event, Events, Listen, Listener
    from servebench.registry.registry import Registry


@define(
    "run",
    free_words=True,
    examples=[
        ("servebench engine=vllm gpu=h100 load.concurrency=[1,8]", "one run; the word 'run' may be left out"),
        ("servebench run -m engine=vllm,sglang workload=unique,rag_prefix", "a study of four runs"),
        ("servebench engine=vllm gpu=h100 --cfg command", "print the command that starts the engine"),
        ("servebench run --lock outputs/STUDY/RUN/manifest.json", "repeat a stored run"),
    ],
)
@words_argument
@click.option(
    "-m", "--multirun", is_flag=True, expose_value=False, help="Run a study of several runs: values=with,commas."
)
@click.option(
    "--lock", metavar="FILE", type=FILE, expose_value=False, help="Repeat the stored run of this manifest.json."
)
@trust_option
@session_options
@click.option(
    "--preview", is_flag=True, help="Show the workload's requests, lengths and ideal cache hits; run nothing."
)
@click.option(
    "--dry-run", is_flag=True, help="Check everything, say how long it takes and what it costs; start nothing."
)
@click.option("-c", "--cfg", metavar="job|command", help="Print the config, or the engine's command; run nothing.")
@click.option("--resolve", is_flag=True, help="With --cfg job: resolve interpolations.")
@click.option("-p", "--package", metavar="NAME", help="With --cfg job: print this part of the config only.")
@config_dir_option
@click.option(
    "-cn", "--config-name", metavar="NAME", expose_value=False, help="Start from another file than config.yaml."
)
def run_command(
    *,
    words: tuple[str, ...],
    trusted: bool,
    verbose: bool,
    as_json: bool,
    preview: bool,
    dry_run: bool,
    cfg: str | None,
    resolve: bool,
    package: str | None,
) -> int:
    """Run one configuration, or with -m a study of several.

    A manifest of --lock that you did not make on this machine is shown first, and run if you trust it.

    GROUP=OPTION chooses a config file, such as engine=vllm; KEY=VALUE sets one value, such as load.requests=100. 'servebench
    help' lists the groups and their options.
    """
    from servebench.config.overrides import LOCK_WORD
    from servebench.registry.registry import registry

    if trusted and LOCK_WORD not in words:
        raise ConfigError(f"run: --trust is for a manifest of {LOCK_WORD} FILE; leave it out")
    if cfg not in (None, "job", "command"):
        raise ConfigError(f"--cfg must be job or command (got {cfg})")
    if (resolve or package) and cfg != "job":
        raise ConfigError(f"{'--resolve' if resolve else '--package'} is for --cfg job; leave it out")
    if cfg == "command":
        from servebench.study.show_commands import show_commands

        return show_commands(words, registry())
    if dry_run:
        return print_plan(words, as_json=as_json)
    if preview:
        return print_previews(words, registry())
    if cfg == "job":
        from servebench.config.composition import config_text

        click.echo(config_text(words, registry(), resolve=resolve, package=package), nl=False)
        return 0
    return run_words(words, verbose=verbose, as_json=as_json, trusted=trusted)


def run_words(
    words: tuple[str, ...], *, verbose: bool, as_json: bool, trusted: bool = False, also: Listener | None = None
) -> int:
    """Run what the words describe, and tell its events `also` to a listener. Returns the exit code. Raises ServebenchError."""
    from servebench.contracts.events import Events
    from servebench.registry.registry import registry
    from servebench.report.terminal.display import listeners
    from servebench.study.study import run_study

    if asked := next((word for word in words if word.startswith("tune.")), None):
        raise ConfigError(f"{asked}: words with tune. belong to 'servebench tune'")
    known, words = registry(), _with_model(words)
    shown = listeners(known, verbose=verbose, as_json=as_json)

    @contextmanager
    def listen() -> Iterator[Events]:
        with shown() as events:
            yield events if also is None else Events((*events.listeners, also), live=events.live)

    return run_study(words, known, listen=listen, trusted=trusted)


def print_plan(words: Sequence[str], *, as_json: bool) -> int:
    """Print what a run of these words would do. Returns 0. Raises ConfigError, PreflightError, EngineError."""
    from servebench.registry.registry import registry
    from servebench.report.blocks import Line
    from servebench.report.terminal.console import Output
    from servebench.report.terminal.display import listeners
    from servebench.report.terminal.words import line_of
    from servebench.study.study import dry_run

    known = registry()
    plan = dry_run(_with_model(words), known, listen=listeners(known))
    Output(as_json=as_json).write([Line.of(line_of(plan))], asdict(plan))
    return 0


def _with_model(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words, with the model that their endpoint serves."""
    from servebench.registry.shorthand import ENDPOINT

    if not any(word.startswith(f"{ENDPOINT}=") for word in words):
        return tuple(words)
    from servebench.study.served_model import with_served_model

    return tuple(with_served_model(words))


def print_previews(words: Sequence[str], registry: Registry) -> int:
    """Print each different workload of the jobs that the words describe. Returns 0. Raises ConfigError."""
    from servebench.config import compose_jobs
    from servebench.report.screens.preview import preview_blocks
    from servebench.report.terminal.console import Output
    from servebench.run.preview import preview, preview_key

    shown = []
    for job in compose_jobs(words, registry):
        key = preview_key(job.settings)
        if key not in shown:
            shown.append(key)
            Output().write(preview_blocks(preview(job.settings, registry)))
    return 0


@define(
    "demo",
    free_words=True,
    examples=[
        ("servebench demo", "three simulated engines on three workloads, with as many starts as a verdict takes"),
        (
            "servebench demo launch=emulated study.until=null study.starts=1",
            "with servers that are started and loaded, one start each",
        ),
        ("servebench demo study.name=first study.dir=/tmp/outputs", "with overrides, as of a run"),
    ],
)
@words_argument
@session_options
def demo_command(words: tuple[str, ...], *, verbose: bool, as_json: bool) -> int:
    """Run three simulated engines on three workloads until they are decided, in three minutes, and write the report."""
    from servebench.cli.main import dispatch
    from servebench.contracts.events import ResultsStored

    stored: list[Path] = []

    def note(event: Event) -> None:
        if isinstance(event, ResultsStored):
            stored.append(event.folder)

    code = run_words(("-m", "experiment=demo", *words), verbose=verbose, as_json=as_json, also=note)
    if code or as_json:
        return code
    return dispatch(["report", stored[-1].name, "--outputs", str(stored[-1].parent)])


@define(
    "tune",
    free_words=True,
    examples=[
        ("servebench tune load.concurrency=[8] tune.budget=8m", "the embedded engine on this machine"),
        (
            "servebench tune engine=vllm gpu=h100 workload=rag_prefix slo=interactive tune.objective=goodput \\\n"
            "      load.concurrency=[64] tune.budget=90m",
            "the most requests that meet the SLO",
        ),
        ("servebench tune engine=vllm,sglang gpu=h100 load.concurrency=[64]", "engine and settings together"),
        ("servebench tune engine=vllm launch=simulated gpu=h100", "try it without an engine, in virtual time"),
        (
            "servebench tune hydra/launcher=submitit_local hydra.launcher.runs_per_machine=4 engine=vllm gpu=h100 \\\n"
            "      load.concurrency=[64]",
            "four candidates at once, each on a GPU of its own",
        ),
        ("servebench tune --continue last tune.budget=30m", "spend more on the latest tune"),
    ],
)
@words_argument
@click.option(
    "--continue",
    "study",
    metavar="[STUDY]",
    is_flag=False,
    flag_value="last",
    help="Continue this tune (default: the latest) with as much more as tune.budget= or tune.trials= says.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the candidates, what they take and what that costs; start nothing."
)
@click.option("-c", "--cfg", metavar="command", help="Print each engine's command with stock settings; run nothing.")
@click.option("--outputs", metavar="DIR", help="With --continue: folder of stored studies (default: outputs).")
@trust_option
@session_options
@config_dir_option
def tune_command(
    *,
    words: tuple[str, ...],
    study: str | None,
    dry_run: bool,
    cfg: str | None,
    outputs: str | None,
    trusted: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Find the best settings of an engine for a model, a GPU, a workload and a load, within a budget of engine time.

    Candidates (stock settings, rules of thumb, your own, random draws) race on the same prompts, and leave when they are
    clearly worse. The best few start again on new prompts: the gain over stock is from these starts alone. The words are
    those of a run, and: tune.objective, tune.levels, tune.budget or tune.trials, tune.margin, tune.error, tune.count,
    tune.finalists, tune.final_starts, tune.only, tune.space=FILE, tune.candidates=FILE, tune.seed and tune.out=DIR
    (docs/tune.md).
    """
    from servebench.registry.registry import registry
    from servebench.report.terminal.display import listeners
    from servebench.study.tune import run_tune

    if (dry_run or cfg) and study is not None:
        raise ConfigError(f"tune: {'--dry-run' if dry_run else '--cfg'} is for a new tune; leave out --continue")
    if cfg is not None:
        from servebench.config.tune_space import parse_question, split_words
        from servebench.study.show_commands import show_commands

        if cfg != "command":
            raise ConfigError(f"tune: --cfg must be command (got {cfg}); --dry-run prints the candidates")
        own, rest = split_words(words)
        parse_question(own)
        return show_commands(["-m", *rest], registry())
    if dry_run:
        return _dry_run(words, as_json=as_json)
    listen = listeners(registry(), verbose=verbose, as_json=as_json)
    if study is not None:
        return _continue(words, study, outputs or "outputs", trusted=trusted, listen=listen)
    if outputs or trusted:
        raise ConfigError(
            "tune: --outputs and --trust are for --continue STUDY; leave them out (study.dir=DIR sets the folder)"
        )
    return run_tune(list(words), registry(), listen=listen)


def _dry_run(words: Sequence[str], *, as_json: bool) -> int:
    """Print what a tune would try. Returns 0. Raises ConfigError, PreflightError."""
    from servebench.registry.registry import registry
    from servebench.report.screens.tuning import plan_blocks
    from servebench.report.terminal.console import Output
    from servebench.store.layout import outputs_folder
    from servebench.study.outlook import earlier_runs, tune_planned
    from servebench.study.tune_plan import plan_tune

    plan = plan_tune(words, registry())
    state = plan.state
    budget_s = state.budget if state.question.trials is None else None
    planned = tune_planned(plan.jobs[0], budget_s, earlier_runs(outputs_folder(plan.jobs[0].settings.study.dir)))
    data = {
        "candidates": [asdict(one) for one in state.candidates],
        "refused": [asdict(one) for one in state.refused],
        "slices": state.slices,
        **asdict(planned),
    }
    Output(as_json=as_json).write(plan_blocks(state, planned), data)
    return 0


def _continue(words: Sequence[str], study: str, outputs: str, *, trusted: bool, listen: Listen) -> int:
    """Continue a stored tune with more budget. Raises ConfigError."""
    from servebench.config.tune_space import parse_question, split_words
    from servebench.registry.registry import registry
    from servebench.store.layout import outputs_folder
    from servebench.store.studies import named_studies
    from servebench.store.tune import is_tune, read_signed_tune
    from servebench.study.tune import continue_tune

    own, rest = split_words(words)
    names = {word.lstrip("+").partition("=")[0] for word in own}
    if strange := rest or sorted(names - {"tune.budget", "tune.trials"}):
        raise ConfigError(
            f"tune: --continue takes tune.budget= or tune.trials= and nothing else (got {' '.join(strange)})"
        )
    folder = named_studies([study], outputs_folder(outputs))[0]
    if not is_tune(folder):
        raise ConfigError(f"{folder.name} is not a tune; 'servebench resume {folder.name}' continues a study")
    question, stored = parse_question(own), read_signed_tune(folder, "")[0].question
    if (stored.trials is None) == ("tune.trials" in names) and names:
        key = "tune.budget" if stored.trials is None else "tune.trials"
        raise ConfigError(f"tune: {folder.name} has {key}; continue it with {key}=")
    more = 0.0 if not names else float(question.trials or 0) if stored.trials is not None else question.budget_s
    return continue_tune(folder, registry(), more=more, trusted=trusted, listen=listen)
