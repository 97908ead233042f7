"""`servebench ls`."""

from pathlib import Path

import click

from servebench.cli.command import conditions_argument, define, json_option, outputs_option

NEWEST = 100


@define(
    "ls",
    examples=[
        ("servebench ls", "all runs"),
        ("servebench ls engine=vllm,sglang status=finished", "runs that meet both conditions"),
        ("servebench ls 'model=*llama*' engine.dtype=float16 --json", "by pattern and config key, as JSON"),
    ],
)
@conditions_argument
@click.option(
    "--all",
    "every",
    is_flag=True,
    help=f"Show all runs: the candidates of tunes, and on a terminal more than about {NEWEST} of the newest.",
)
@json_option
@outputs_option
def command(*, conditions: tuple[str, ...], every: bool, as_json: bool, outputs: Path) -> int:
    """List stored runs, all or those that meet the conditions, newest last.

    Other commands take a run by its number: servebench compare 1 2.
    """
    from servebench.report.output import Output
    from servebench.report.screens.listing import list_blocks, run_list
    from servebench.store.overview import listed_rows
    from servebench.store.studies import load_outputs, number_runs, select

    wanted = parse_conditions(conditions)
    studies = select(load_outputs(outputs, listed_rows), wanted)
    out, numbers = Output(as_json=as_json), number_runs(outputs)
    if as_json:
        out.write((), run_list(studies, numbers))
    elif studies:
        candidates = every or not {"study", "run"}.isdisjoint(wanted)
        width, most = (None, None) if out.complete else (out.width, None if every else NEWEST)
        out.write(list_blocks(studies, numbers, width=width, most=most, candidates=candidates))
    else:
        click.echo(" ".join(("there are no runs in", str(outputs), *(("with", *conditions) if conditions else ()))))
    return 0


def parse_conditions(words: tuple[str, ...]) -> dict[str, str]:
    """Return the conditions in `key=value` words. Raises ConfigError."""
    from servebench.store.studies import CONDITION_KEYS
    from servebench.util.errors import ConfigError

    conditions = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not (key in CONDITION_KEYS or "." in key):
            raise ConfigError(
                f"ls: '{word}' is not a condition; use KEY=VALUE with one of {', '.join(CONDITION_KEYS)}, or a config key "
                "such as engine.dtype"
            )
        conditions[key] = value
    return conditions
