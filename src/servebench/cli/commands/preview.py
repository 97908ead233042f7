"""`servebench preview`, and `--preview` of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from servebench.cli.command import define, words_argument

if TYPE_CHECKING:
    from servebench.registry.registry import Registry


@define(
    "preview",
    free_words=True,
    examples=[
        ("servebench preview workload=rag_prefix", "requests of the preset, with the default model"),
        ("servebench preview -m workload=unique,multi_turn model=qwen2.5-7b-instruct", "two workloads"),
    ],
)
@words_argument
def command(words: tuple[str, ...]) -> int:
    """Show the requests of a workload, their lengths and the ideal cache hits, without an engine."""
    from servebench.registry.registry import registry

    return print_previews(words, registry())


def print_previews(words: Sequence[str], registry: Registry) -> int:
    """Print each different workload of the jobs that the words describe. Returns 0. Raises ConfigError, PreflightError."""
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
