"""`servebench import`."""

from pathlib import Path

import click

from servebench.cli.command import FILE, define, outputs_option


@define(
    "import",
    examples=[
        ("servebench import vllm_c1.json vllm_c8.json", "two load levels of one run"),
        ("servebench import genai.json --tool genai-bench --engine sglang --gpu h100", "name what the file leaves out"),
    ],
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option("--tool", metavar="TOOL", help="Tool that wrote the files (default: recognised by content).")
@click.option("--engine", metavar="NAME", help="Engine that was measured.")
@click.option("--model", metavar="NAME", help="Model that was served.")
@click.option("--gpu", metavar="NAME", help="GPU that it ran on.")
@click.option("--workload", metavar="NAME", help="Workload that was sent.")
@click.option("--name", metavar="NAME", help="Name of the new study.")
@outputs_option
def command(files: tuple[Path, ...], tool: str | None, outputs: Path, **names: str | None) -> int:
    """Import result files of vllm bench, sglang, guidellm, aiperf and genai-bench as runs of a new study.

    Files of one tool, engine and model become the load levels of one run, which is marked as foreign.
    """
    from servebench.foreign.as_study import store_foreign
    from servebench.foreign.readers import read_foreign

    found = [(file, read_foreign(file, tool)) for file in files]
    given = {key: value for key, value in {"tool": tool, **names}.items() if value is not None}
    click.echo(store_foreign(outputs, found, given))
    return 0
