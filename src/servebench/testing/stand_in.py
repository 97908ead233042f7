"""Write an executable that replaces an engine's program, to test its life cycle where it is not installed."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from servebench.testing.server import ServerBehavior

LOG_GAP = "sleep 0.06"
"""A launcher reads the log 20 times per second; separate lines then get separate timestamps."""


def write_stand_in(
    path: Path,
    behavior: ServerBehavior,
    *,
    host: str,
    port: int,
    log: Sequence[str] = (),
    dies_with: tuple[str, int] | None = None,
    exit_codes: Mapping[str, int] | None = None,
) -> Path:
    """Write the executable to `path` and return it.

    It prints the lines of `log`, then serves on `host` and `port` with this `behavior` and ignores its arguments. A first
    argument in `exit_codes` makes it exit with that code instead. With `dies_with` it prints that line and exits with that
    code instead of serving.
    """
    lines = ["#!/bin/sh"]
    for argument, code in (exit_codes or {}).items():
        lines.append(f'[ "$1" = {shlex.quote(argument)} ] && exit {code}')
    for line in log:
        lines += [f"printf '%s\\n' {shlex.quote(line)}", LOG_GAP]
    if dies_with is not None:
        lines += [f"printf '%s\\n' {shlex.quote(dies_with[0])}", f"exit {dies_with[1]}"]
    options = json.dumps({"host": host, "port": port, **asdict(behavior)})
    lines.append(
        f"exec {shlex.quote(sys.executable)} -S -P {shlex.quote(inspect.getfile(ServerBehavior))} {shlex.quote(options)}"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path
