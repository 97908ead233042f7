"""Starts the dashboard: Streamlit on this machine's own address."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from servebench.report.dashboard.local import ADDRESS
from servebench.util.children import python_environment
from servebench.util.errors import PreflightError

PORT = 8501


def dashboard_command(outputs: Path, port: int) -> list[str]:
    """Return the command that serves the dashboard. Raises PreflightError where Streamlit is not installed."""
    if find_spec("streamlit") is None:
        raise PreflightError("the dashboard needs Streamlit: pip install 'servebench-suite[dashboard]'")
    options = {
        "server.address": ADDRESS,
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "logger.hideWelcomeMessage": "true",
        "runner.magicEnabled": "false",
        "theme.base": "light",
        "theme.primaryColor": "#0a58a3",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    module = "servebench.report.dashboard.serve"
    return [sys.executable, "-P", "-m", module, str(outputs.absolute()), str(port), *words]


def serve_dashboard(outputs: Path, port: int) -> NoReturn:
    """Replace this process by the server, so that a signal stops all of it. Raises PreflightError."""
    command, environment = dashboard_command(outputs, port), python_environment(None, "STREAMLIT_")
    # Streamlit reads .streamlit/ of the folder it starts in
    os.chdir(Path(__file__).parent)
    os.execve(command[0], command, environment)  # noqa: S606  no shell is wanted
