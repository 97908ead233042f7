"""`servebench published`."""

from pathlib import Path

import click

from servebench.cli.command import FILE, define


@define(
    "published",
    examples=[
        ("servebench published", "write docs/published.md"),
        ("servebench published /tmp/published.md", "write another file"),
    ],
)
@click.argument("path", metavar="[FILE]", type=FILE, default="docs/published.md")
def command(path: Path) -> int:
    """Write a page that compares the articles' published numbers with emulated engines."""
    from servebench.published.comparison import write_published
    from servebench.registry.registry import registry

    click.echo(f"{path}: {write_published(path, registry())}")
    return 0
