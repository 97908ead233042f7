"""Settings as words of the command, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COMMAND_TIMEOUT_S = 200.0


def servebench(
    folder: Path, *words: str, env: Mapping[str, str] | None = None, timeout_s: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """What the command does in a folder, with `env` added to the environment. Raises TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-m", "servebench", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(env or {})},
    )


def overrides(group: str, settings: Mapping[str, Any]) -> list[str]:
    """`GROUP.KEY=VALUE` for each setting, values as Hydra writes them."""
    return [f"{group}.{key}={hydra(value)}" for key, value in settings.items()]


def hydra(value: Any) -> str:
    """Plain data in Hydra's grammar: keys stand bare, text is quoted."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(hydra(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)
