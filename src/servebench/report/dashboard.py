"""Starts the dashboard: Streamlit in a process of its own, on this machine's own address."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from servebench.errors import PreflightError

ADDRESS = "127.0.0.1"
PORT = 8501


def dashboard_command(app: Path, outputs: Path, port: int) -> list[str]:
    """The command that serves the dashboard. Raises PreflightError where Streamlit is not installed."""
    if find_spec("streamlit") is None:
        raise PreflightError("the dashboard needs Streamlit: pip install 'servebench-suite[dashboard]'")
    options = {
        "server.address": ADDRESS,
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "theme.base": "light",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "streamlit", "run", str(app), *words, "--", str(outputs)]


def serve_dashboard(app: Path, outputs: Path, port: int) -> int:
    """Serve until the user stops it; returns Streamlit's exit code. Raises PreflightError."""
    command = dashboard_command(app, outputs, port)
    sys.stderr.write(f"servebench: the dashboard is at http://{ADDRESS}:{port}; stop it with ctrl-c\n")
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        return 0
