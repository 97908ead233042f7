"""Run the `servebench` command, with settings as overrides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COMMAND_TIMEOUT_S = 200.0


def run_servebench(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, with `env` added to the environment. Raises TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-m", "servebench", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(env or {})},
    )


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
