"""`servebench demo`."""

from servebench.cli.command import define, words_argument
from servebench.cli.commands.run import run_words


@define(
    "demo",
    free_words=True,
    examples=[
        ("servebench demo", "three emulated engines on three workloads"),
        ("servebench demo study.name=first study.dir=/tmp/outputs", "with overrides, as of a run"),
    ],
)
@words_argument
def command(words: tuple[str, ...]) -> int:
    """Run three emulated engines on three workloads, without a GPU, in three minutes, and write the report."""
    from servebench.cli.main import dispatch

    code = run_words(("-m", "experiment=demo", *words))
    outputs = next((word.partition("=")[2] for word in words if word.startswith("study.dir=")), "outputs")
    return code or dispatch(["report", "last", "--outputs", outputs])
