"""`servebench run`, the default command, and `demo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from servebench.cli.command import (
    FILE,
    config_dir_option,
    define,
    json_option,
    trust_option,
    verbose_option,
    words_argument,
)

if TYPE_CHECKING:
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
@verbose_option
@json_option
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
    from servebench.util.errors import ConfigError

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


def run_words(words: tuple[str, ...], *, verbose: bool, as_json: bool, trusted: bool = False) -> int:
    """Run what the words describe. Returns the exit code. Raises ServebenchError."""
    from servebench.registry.registry import registry
    from servebench.report.terminal.display import Detail, listeners
    from servebench.study.study import run_study
    from servebench.util.errors import ConfigError

    if asked := next((word for word in words if word.startswith("tune.")), None):
        raise ConfigError(f"{asked}: words with tune. belong to 'servebench tune'")
    known, words = registry(), _with_model(words)
    return run_study(words, known, listen=listeners(known, Detail(verbose=verbose, as_json=as_json)), trusted=trusted)


def print_plan(words: Sequence[str], *, as_json: bool) -> int:
    """Print what a run of these words would do. Returns 0. Raises ConfigError, PreflightError, EngineError."""
    from dataclasses import asdict

    from servebench.registry.registry import registry
    from servebench.report.blocks import Line
    from servebench.report.output import Output
    from servebench.report.terminal.display import Detail, listeners
    from servebench.report.terminal.words import line_of
    from servebench.study.study import dry_run

    known = registry()
    plan = dry_run(_with_model(words), known, listen=listeners(known, Detail()))
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
    from servebench.report.output import Output
    from servebench.report.screens.preview import preview_blocks
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
@verbose_option
@json_option
def demo_command(words: tuple[str, ...], *, verbose: bool, as_json: bool) -> int:
    """Run three simulated engines on three workloads until they are decided, in three minutes, and write the report."""
    from servebench.cli.main import dispatch

    code = run_words(("-m", "experiment=demo", *words), verbose=verbose, as_json=as_json)
    outputs = next((word.partition("=")[2] for word in words if word.startswith("study.dir=")), "outputs")
    return code or (0 if as_json else dispatch(["report", "last", "--outputs", outputs]))
