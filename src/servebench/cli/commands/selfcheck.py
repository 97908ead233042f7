"""`servebench selfcheck`."""

from dataclasses import asdict

import click

from servebench.cli.command import define, json_option


@define(
    "selfcheck",
    examples=[
        ("servebench selfcheck", "a table of the client's errors by load"),
        ("servebench selfcheck --json", "the same for a program"),
    ],
)
@json_option
def command(as_json: bool) -> int:
    """Measure how exact the load client is on this machine, in three seconds."""
    from servebench.load.selfcheck.floor import format_floor, measure_floor
    from servebench.util.cache import cache_folder
    from servebench.util.plain_data import to_json

    floor = measure_floor(cache_folder())
    click.echo(to_json(asdict(floor)).rstrip() if as_json else "\n".join(format_floor(floor)))
    return 0
