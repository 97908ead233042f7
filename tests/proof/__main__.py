"""Measure how often the conclusions of servebench are right on real engines: `make proof`."""

import sys
from pathlib import Path
from time import monotonic

import click

from proof.judge import coverage_lines, planted, spreads, verdict_lines
from proof.page import ProofPart, page, rows_csv
from proof.studies import NEIGHBOURS, SIDES, Plan, ProofStudy, measure, studies
from servebench.contracts.stored import mapping
from servebench.store.files import write_file
from servebench.util.errors import ServebenchError
from servebench.util.figures import local_time


def _settings(words: tuple[str, ...]) -> dict[str, object]:
    import yaml

    return {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words)}


@click.command()
@click.option(
    "--engine", "engines", multiple=True, default=("llamacpp",), show_default=True, help="An engine; repeatable."
)
@click.option("--neighbour", "neighbours", multiple=True, type=click.Choice(NEIGHBOURS), default=NEIGHBOURS,
              help="State of the machine; repeatable.")  # fmt: skip
@click.option(
    "--rounds", type=click.IntRange(1), default=40, show_default=True, help="Pairs of fresh starts of each engine."
)
@click.option("--levels", default="1,2,4", show_default=True, help="Users of each level.")
@click.option("--seconds", type=click.FloatRange(1), default=15.0, show_default=True, help="Length of a point.")
@click.option("--long-points", type=click.IntRange(2), default=20, show_default=True, help="Points of the long run.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of all engines; repeatable.")
@click.option("--change", metavar="KEY=VALUE", multiple=True, help="A setting of the changed engine; repeatable.")
@click.option("--note", default="", help="A sentence for the page, such as what else the machine did.")
@click.option(
    "--minutes",
    type=click.FloatRange(0),
    default=float("inf"),
    help="Stop measuring after this; 0 only writes the page.",
)
@click.option("--outputs", type=click.Path(path_type=Path), default=Path("outputs/proof"), show_default=True,
              help="Folder of the studies.")  # fmt: skip
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("docs/proof.md"), show_default=True,
              help="The page; its rows are written beside it as CSV.")  # fmt: skip
@click.argument("words", nargs=-1)
def main(*, engines: tuple[str, ...], neighbours: tuple[str, ...], rounds: int, levels: str, seconds: float,
         long_points: int, settings: tuple[str, ...], change: tuple[str, ...], note: str, minutes: float, outputs: Path,
         output: Path, words: tuple[str, ...]) -> int:  # fmt: skip
    """Measure how often the conclusions of servebench are right on real engines, and write the page.

    WORDS are further overrides of all studies. Each start is stored as it ends: the same command goes on where a stopped or
    killed one was, and the page has what is stored by then.
    """
    plan = Plan(
        outputs=outputs.resolve(),
        levels=tuple(int(one) for one in levels.split(",")),
        rounds=rounds,
        seconds=seconds,
        long_points=long_points,
        words=words,
    )
    listed = studies(engines, neighbours, plan, settings=_settings(settings), change=_settings(change))
    until_s = monotonic() + 60 * minutes
    for study in listed:
        if not study.finished and (monotonic() >= until_s or not measure(study, lambda: monotonic() >= until_s)):
            click.echo("not all is measured: the same command goes on", err=True)
            break
    parts = [part for study in listed if (part := judge(study)) is not None]
    write_file(output, page(parts, output.with_suffix(".csv").name, note))
    write_file(output.with_suffix(".csv"), rows_csv(parts))
    return 0


def judge(study: ProofStudy) -> ProofPart | None:
    """Return what the stored starts of a study say; None where none is stored."""
    from servebench.store.studies import load_study

    stored = load_study(study.path) if study.path.exists() else None
    runs = [run for run in stored.runs if run.point_rows] if stored else []
    if stored is None or not runs or study.kind == "learn":
        return None
    git = runs[0].manifest.get("git")
    commit = f"commit {git['commit'][:9]}" if isinstance(git, dict) and git.get("commit") else "no commit"
    machine = mapping(runs[0].manifest.get("machine"))
    load, settings = (
        mapping(runs[0].config.get("load")),
        [mapping(run.config.get("engine")) for run in (runs[0], runs[-1])],
    )
    change = ", ".join(f"{key}={value}" for key, value in settings[1].items() if value != settings[0].get(key))
    rounds = len({row.repeat for row in runs[0].point_rows})
    sliced = any(row.slice_group for row in runs[0].point_rows)
    said = (
        f"{runs[0].fact('engine_version')}; {machine.get('cpu_model')}, {machine.get('cpu_threads_usable')} threads; "
    )
    said += (
        f"measured from {local_time(stored.state.get('started_s'))}, {commit}; points of {load.get('duration_s')} s. "
    )
    if study.kind != "rounds":
        learned = ", after a long point" * (study.kind == "long_learned")
        of = f"{study.neighbour}{learned}"
        return ProofPart(
            engine=study.engine,
            neighbour=f"{study.neighbour}, long run{learned}",
            text=f"{said}{rounds} points at each level. {spreads(runs[0])}",
            lines=[*coverage_lines(stored, study.engine, of)],
        )
    return ProofPart(
        engine=study.engine,
        neighbour=study.neighbour,
        text=f"{said}{rounds} rounds{', slice by slice' * sliced}; changed: {change or 'nothing yet'}.",
        lines=[*verdict_lines(stored, study.engine, study.neighbour)],
        changes=planted(runs[0], runs[-1]) if len(runs) == len(SIDES) else None,
    )


if __name__ == "__main__":
    try:
        sys.exit(main(standalone_mode=False))
    except (ServebenchError, click.ClickException) as error:
        sys.exit(f"proof: {error}")
