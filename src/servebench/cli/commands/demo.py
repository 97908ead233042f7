"""`servebench demo`."""

from servebench.cli.command import define, json_option, verbose_option, words_argument
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
@verbose_option
@json_option
def command(words: tuple[str, ...], *, verbose: bool, as_json: bool) -> int:
    """Run three emulated engines on three workloads, without a GPU, in three minutes, and write the report."""
    from servebench.cli.main import dispatch

    code = run_words(("-m", "experiment=demo", *words), verbose=verbose, as_json=as_json)
    outputs = next((word.partition("=")[2] for word in words if word.startswith("study.dir=")), "outputs")
    return code or (0 if as_json else dispatch(["report", "last", "--outputs", outputs]))
