"""`servebench demo`."""

import click

from servebench.cli.command import define, verbose_option, words_argument
from servebench.cli.commands.run import JSON_WORD, run_words


@define(
    "demo",
    free_words=True,
    examples=[
        ("servebench demo", "three emulated engines on three workloads"),
        ("servebench demo study.name=first study.dir=/tmp/outputs", "with overrides, as of a run"),
    ],
)
@words_argument
@verbose_option
@click.option("--json", is_flag=True, help="Print the answer as JSON, without the path of the page.")
def command(words: tuple[str, ...], **_: object) -> int:
    """Run three emulated engines on three workloads, without a GPU, in three minutes, and write the report."""
    from servebench.cli.main import dispatch

    code = run_words(("-m", "experiment=demo", *words))
    outputs = next((word.partition("=")[2] for word in words if word.startswith("study.dir=")), "outputs")
    return code or (0 if JSON_WORD in words else dispatch(["report", "last", "--outputs", outputs]))
