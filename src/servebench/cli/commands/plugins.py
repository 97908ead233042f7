"""`servebench plugins`."""

from pathlib import Path

import click

from servebench.cli.command import FILE, CommandGroup, OneOf, define, json_option

KINDS = ("engine", "scorer", "workload")


@click.group(
    "plugins",
    cls=CommandGroup,
    invoke_without_command=True,
    examples=[
        ("servebench plugins", "a table of plugins, and what each adds"),
        ("servebench plugins --json", "the same for a program"),
        ("servebench plugins new my-engine", "write the skeleton of an engine plugin"),
    ],
)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """List the installed plugins, what each adds, and what is wrong with a broken one; 'plugins new' writes a new one."""
    if ctx.invoked_subcommand is None:
        from servebench.registry.registry import registry
        from servebench.report.output import Output
        from servebench.report.screens.plugins import plugins_blocks, plugins_data

        Output(as_json=as_json).write(plugins_blocks(registry()), plugins_data(registry()))
    return 0


@define(
    "new",
    examples=[
        ("servebench plugins new my-engine", "an engine plugin in servebench-my-engine/"),
        ("servebench plugins new my-bench --kind scorer --dir plugins", "a scorer plugin below plugins/"),
    ],
)
@click.argument("name", metavar="NAME")
@click.option("--kind", type=OneOf(KINDS), default="engine", help="What the plugin adds (default: engine).")
@click.option(
    "--dir", "directory", metavar="DIR", type=FILE, default=".", help="Folder to write it in (default: this folder)."
)
def new(name: str, kind: str, directory: Path) -> int:
    """Write a working plugin to start from."""
    from servebench.registry.registry import registry
    from servebench.skeleton import write_plugin

    click.echo(write_plugin(name, kind=kind, directory=directory, taken=registry().kinds), nl=False)
    return 0


command.add_command(new)
