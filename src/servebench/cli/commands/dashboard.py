"""`servebench dashboard`."""

from pathlib import Path

import click

from servebench.cli.command import PORT, define, outputs_option


@define(
    "dashboard",
    examples=[
        ("servebench dashboard", "serve the runs of outputs/ on port 8501"),
        ("servebench dashboard --port 9000 --outputs /data/outputs", "another port and folder"),
    ],
)
@click.option("--port", metavar="N", type=PORT, default=8501, help="Port to listen on (default: 8501).")
@click.option("--allow-host", "hosts", metavar="NAME", multiple=True, help="Also answer under this name, of a proxy.")
@outputs_option
def command(port: int, hosts: tuple[str, ...], outputs: Path) -> int:
    """Serve pages over all runs for a browser on this machine, until interrupted."""
    from servebench.report.dashboard.launch import serve_dashboard

    serve_dashboard(outputs, port, [name.lower() for name in hosts])
