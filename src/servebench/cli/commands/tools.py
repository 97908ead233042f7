"""`servebench plugins`, `selfcheck`, `dashboard`, `record`, `export`, `import`, `bundle` and `help`."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servebench.cli.command import FILE, PORT, CommandGroup, OneOf, define, json_option, outputs_option, stored_argument
from servebench.util.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from servebench.registry.registry import Registry
    from servebench.report.blocks import Block

TONES = {"broken": "bad", "disabled": "dim"}
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
def plugins_command(ctx: click.Context, as_json: bool) -> int:
    """List the installed plugins, what each adds, and what is wrong with a broken one; 'plugins new' writes a new one."""
    if ctx.invoked_subcommand is None:
        from servebench.registry.registry import registry
        from servebench.report.terminal.console import Output

        known = registry()
        offers = {kind: sorted(classes) for kind, classes in known.kinds.items()}
        data = {"plugins": [asdict(info) for info in known.plugins], "offers": offers, "faults": list(known.faults)}
        Output(as_json=as_json).write(_plugins_blocks(known, offers), data)
    return 0


def _plugins_blocks(known: Registry, offers: Mapping[str, Sequence[str]]) -> Iterator[Block]:
    """Yield the plugins, what the registry offers by kind, and its faults."""
    from servebench.report.blocks import Line, Span, items, table

    rows = [
        (one.name, one.distribution, one.version, Span(one.status, TONES.get(one.status, "")), "\n".join(one.hooks))
        for one in known.plugins
    ]
    if rows:
        yield table(("name", "distribution", "version", "status", "hooks"), rows, left=range(5))
    else:
        yield Line.of("no plugins are installed; the built-ins are available")
    yield items((f"{info.name} is broken: {info.error}" for info in known.plugins if info.error), tone="bad")
    yield items(f"{kind}: {', '.join(names)}" for kind, names in offers.items())
    yield items(f"warning: {fault}" for fault in known.faults)


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
    from servebench.registry.conf import config_folders, config_groups
    from servebench.registry.registry import registry
    from servebench.skeleton import write_plugin

    options = config_groups(config_folders(registry().config_paths))
    taken = {group: {*classes, *options.get(group, ())} for group, classes in registry().kinds.items()}
    click.echo(write_plugin(name, kind=kind, directory=directory, taken=taken), nl=False)
    return 0


plugins_command.add_command(new)


@define(
    "selfcheck",
    examples=[
        ("servebench selfcheck", "a table of the client's errors by load"),
        ("servebench selfcheck --json", "the same for a program"),
    ],
)
@outputs_option
@json_option
def selfcheck_command(outputs: Path, as_json: bool) -> int:
    """Measure how exact the load client is on this machine, in three seconds, and say what is known of how its engines wander."""
    from servebench.analysis.answer.next_steps import long_command
    from servebench.load.selfcheck.check import format_floor, measure_floor
    from servebench.report.wording.noise import long_point_helps, noise_line, nothing_known_line
    from servebench.store.noise import all_noise
    from servebench.store.studies import load_outputs
    from servebench.util.cache import cache_folder
    from servebench.util.plain_data import to_json

    floor = measure_floor(cache_folder())
    known = list(all_noise(outputs))
    if as_json:
        noise = [{"facts": facts, **asdict(one)} for one, facts in known]
        click.echo(to_json({**asdict(floor), "noise": noise}).rstrip())
        return 0
    lines = [noise_line(one, facts, time.time()) for one, facts in known]
    if not lines:
        command = "servebench load=long"
        with suppress(StoreError):
            runs = (run for study in reversed(load_outputs(outputs)) for run in study.runs)
            command = next((long_command(run) for run in runs if long_point_helps(run, known, time.time())), command)
        lines = [nothing_known_line(command)]
    click.echo("\n".join([*format_floor(floor), *lines]))
    return 0


@define(
    "dashboard",
    examples=[
        ("servebench dashboard", "serve the runs of outputs/ on port 8501"),
        ("servebench dashboard --port 9000 --outputs /data/outputs", "another port and folder"),
    ],
)
@click.option("--port", metavar="N", type=PORT, default=8501, help="Port to listen on (default: 8501).")
@outputs_option
def dashboard_command(port: int, outputs: Path) -> int:
    """Serve pages over all runs for a browser on this machine, until interrupted."""
    from servebench.report.dashboard.local import serve_dashboard

    serve_dashboard(outputs, port)


@define(
    "record",
    examples=[
        (
            "servebench record --to monday.jsonl -- http://host:8000",
            "clients use port 8800 of this machine, until Ctrl-C",
        ),
        (
            "servebench record --to a.jsonl --host 0.0.0.0 --port 80 -- https://host",
            "also for clients on other machines",
        ),
    ],
)
@click.argument("url", metavar="URL")
@click.option("--to", "file", metavar="FILE", type=FILE, required=True, help="New file of the trace, a .jsonl.")
@click.option("--port", metavar="N", type=PORT, default=8800, help="Port to listen on (default: 8800).")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Address to listen on (default: 127.0.0.1).")
@click.option(
    "--salt", metavar="TEXT", help="Salt of the hashes, the same for traces to be compared (default: random)."
)
@click.option(
    "--block-tokens",
    "block",
    metavar="N",
    type=click.IntRange(16),
    default=64,
    help="Tokens of a hashed block (default: 64).",
)
def record_command(url: str, **options: Any) -> int:
    """Record the requests to a service as a trace without their content: a proxy that clients use in its place."""
    from servebench.record.recording import record

    record(url, say=click.echo, **options)
    return 0


@define(
    "export",
    examples=[
        ("servebench export last --format csv", "all points, to standard output"),
        ("servebench export my_study --format json --out runs.json", "all runs with their manifests"),
    ],
)
@stored_argument(several=True)
@click.option("--format", "form", type=OneOf(("csv", "json")), required=True, help="Format of the export.")
@click.option("--out", metavar="PATH", type=FILE, help="File to write (default: standard output).")
@outputs_option
def export_command(names: tuple[str, ...], form: str, out: Path | None, outputs: Path) -> int:
    """Export runs for other programs."""
    from servebench.report.export.runs import to_csv, to_json
    from servebench.store.files import write_file
    from servebench.store.studies import find, runs_of

    runs = [run for name in names for run in runs_of(find(name, outputs))]
    text = to_csv(runs) if form == "csv" else to_json(runs)
    if out is None:
        click.echo(text, nl=False)
    else:
        write_file(out, text)
    return 0


@define(
    "bundle",
    examples=[
        ("servebench bundle last", "an archive of the latest study to attach to an issue"),
        ("servebench bundle my_study --requests --out study.tar.gz", "with prompts and answers, to a file of your own"),
    ],
)
@stored_argument()
@click.option("--out", metavar="FILE", type=FILE, help="File to write (default: STUDY.tar.gz in this folder).")
@click.option("--requests", is_flag=True, help="Add the tables of requests, answers and questions.")
@outputs_option
def bundle_command(name: str, out: Path | None, requests: bool, outputs: Path) -> int:
    """Write a redacted archive of a study or run: configs, points and logs, without prompts and answers."""
    from servebench.store.bundle import write_bundle
    from servebench.store.studies import find, runs_of

    found = find(name, outputs)
    runs = [run.path for run in runs_of(found)]
    study = found.path.parent if found.path in runs else found.path
    to = out or Path(f"{study.name}.tar.gz")
    count = write_bundle([study, *runs], to, requests=requests)
    click.echo(f"{to}: {count} files, without known secrets; read its logs before you publish it")
    return 0


@define(
    "import",
    examples=[
        ("servebench import vllm_c1.json vllm_c8.json", "two load levels of one run"),
        ("servebench import theirs.json --tool guidellm --engine sglang --gpu h100", "name what the file leaves out"),
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
def import_command(files: tuple[Path, ...], tool: str | None, outputs: Path, **names: str | None) -> int:
    """Import result files of vllm bench, sglang, guidellm and aiperf as runs of a new study.

    Files of one tool, engine and model become the load levels of one run, which is marked as foreign.
    """
    from servebench.foreign.as_study import store_foreign
    from servebench.foreign.readers import read_foreign

    found = [(file, read_foreign(file, tool)) for file in files]
    given = {key: value for key, value in {"tool": tool, **names}.items() if value is not None}
    click.echo(store_foreign(outputs, found, given))
    return 0


@define(
    "help",
    examples=[
        ("servebench help", "list commands, config groups and options"),
        ("servebench help compare", "explain one command"),
    ],
)
@click.argument("name", metavar="[COMMAND]", required=False)
@click.pass_context
def help_command(ctx: click.Context, name: str | None) -> int:
    """Print this text, or explain one command."""
    from servebench.cli.group import cli, unknown_command

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
