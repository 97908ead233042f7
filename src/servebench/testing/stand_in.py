"""An executable that stands in for an engine's program, so that its life can be tested where the program is not."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from servebench.testing import server
from servebench.testing.server import Manners

LOG_GAP = "sleep 0.06"
"""A launcher reads the log twenty times a second; lines that come apart are stamped apart."""


def write_stand_in(
    path: Path,
    manners: Manners,
    *,
    host: str,
    port: int,
    log: Sequence[str] = (),
    dies_with: tuple[str, int] | None = None,
    verbs: Mapping[str, int] | None = None,
) -> Path:
    """Write the executable to `path` and return it.

    It says the lines of `log`, then serves on `host` and `port` with these `manners`, whatever its arguments are; a first
    argument among `verbs` makes it end at once with that code instead. With `dies_with` it says that line and ends with that
    code in place of serving.
    """
    lines = ["#!/bin/sh"]
    for verb, code in (verbs or {}).items():
        lines.append(f'[ "$1" = {shlex.quote(verb)} ] && exit {code}')
    for line in log:
        lines += [f"printf '%s\\n' {shlex.quote(line)}", LOG_GAP]
    if dies_with is not None:
        lines += [f"printf '%s\\n' {shlex.quote(dies_with[0])}", f"exit {dies_with[1]}"]
    words = json.dumps({"host": host, "port": port, **asdict(manners)})
    lines.append(f"exec {shlex.quote(sys.executable)} -S -P {shlex.quote(server.__file__)} {shlex.quote(words)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path
