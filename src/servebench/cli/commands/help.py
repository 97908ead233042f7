"""`servebench help`."""

import click

from servebench.cli.command import define


@define(
    "help",
    examples=[
        ("servebench help", "list commands, config groups and options"),
        ("servebench help compare", "explain one command"),
    ],
)
@click.argument("name", metavar="[COMMAND]", required=False)
@click.pass_context
def command(ctx: click.Context, name: str | None) -> int:
    """Print this text, or explain one command."""
    from servebench.cli.group import cli, unknown_command
    from servebench.util.errors import ConfigError

    top = ctx.parent or ctx
    if name is None:
        click.echo(top.get_help())
        return 0
    found = cli.get_command(top, name)
    if found is None:
        raise ConfigError(unknown_command(name))
    with click.Context(found, parent=top, info_name=name) as own:
        click.echo(found.get_help(own))
    return 0
