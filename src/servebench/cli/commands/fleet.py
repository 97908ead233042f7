"""`servebench fleet`."""

import click

from servebench.cli.command import RATE, define

DEFAULT_RATES = (100_000.0, 10_000_000.0)


@define(
    "fleet",
    examples=[
        ("servebench fleet", "for 100,000 and for 10 million tokens per second"),
        ("servebench fleet 250000 1_000_000", "for these rates"),
    ],
)
@click.argument("rates", metavar="[TOKENS_S]...", nargs=-1, type=RATE)
def command(rates: tuple[float, ...]) -> int:
    """Estimate the machines, processes and network that a load of so many tokens per second needs."""
    from servebench.published.fleet import table

    click.echo(table(rates or DEFAULT_RATES))
    return 0
