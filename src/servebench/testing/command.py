"""Run the `servebench` command with settings as overrides, and check that a plugin is installed."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servebench.contracts.engine import Engine
from servebench.contracts.quality import Scorer
from servebench.contracts.request import Workload
from servebench.registry.registry import registry

COMMAND_TIMEOUT_S = 200.0


def run_servebench(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, with `env` added to the environment. Raises TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "servebench", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(env or {})},
    )


def run_in_another_process(script: str, *arguments: Any) -> str:
    """Return what a Python script prints in a process with another hash seed; `sys.argv[1]` has the arguments as JSON."""
    env = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    command = [sys.executable, "-c", script, json.dumps(arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def attach_overrides(base_url: str = "http://127.0.0.1:8000/v1", model: str = "model") -> list[str]:
    """Return the overrides that select a running server."""
    return ["engine=openai", "launch=attach", f"launch.base_url={base_url}", f"model.name={model}"]


def assert_is_installed(group: str, plugin: type[Engine | Scorer | Workload], *words: str) -> None:
    """Assert that `GROUP=NAME` with these words selects the plugin's own settings: it is installed, its config group is found."""
    from servebench.config import compose_jobs

    assert re.fullmatch(r"[a-z0-9_-]+", plugin.name), "a name has lower-case letters, digits, _ and -"
    (job,) = compose_jobs([*words, f"{group}={plugin.name}"], registry())
    selected = getattr(job.settings, group)
    assert (type(selected), selected.name) == (plugin.settings_type, plugin.name)
    assert registry().find(group, plugin.name) is plugin


def overrides(group: str, settings: Mapping[str, Any]) -> list[str]:
    """Return `GROUP.KEY=VALUE` for each setting, with values in Hydra's grammar."""
    return [f"{group}.{key}={hydra_value(value)}" for key, value in settings.items()]


def hydra_value(value: Any) -> str:
    """Return plain data in Hydra's grammar: bare keys, quoted text."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
