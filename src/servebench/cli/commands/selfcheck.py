"""`servebench selfcheck`."""

from dataclasses import asdict
from pathlib import Path

import click

from servebench.cli.command import define, json_option, outputs_option


@define(
    "selfcheck",
    examples=[
        ("servebench selfcheck", "a table of the client's errors by load"),
        ("servebench selfcheck --json", "the same for a program"),
    ],
)
@outputs_option
@json_option
def command(outputs: Path, as_json: bool) -> int:
    """Measure how exact the load client is on this machine, in three seconds, and say what is known of how its engines wander."""
    import time

    from servebench.load.selfcheck.floor import format_floor, measure_floor
    from servebench.report.wording.noise import NOTHING_KNOWN, noise_line
    from servebench.store.noise import all_noise
    from servebench.util.cache import cache_folder
    from servebench.util.plain_data import to_json

    floor = measure_floor(cache_folder())
    known = list(all_noise(outputs))
    if as_json:
        noise = [{"facts": facts, **asdict(one)} for one, facts in known]
        click.echo(to_json({**asdict(floor), "noise": noise}).rstrip())
        return 0
    lines = [noise_line(one, facts, time.time()) for one, facts in known] or [NOTHING_KNOWN]
    click.echo("\n".join([*format_floor(floor), *lines]))
    return 0
