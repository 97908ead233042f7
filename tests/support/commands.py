"""Run the `servebench` command: to its end, or in the background until the test is done with it."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

COMMAND_LIMIT_S = 600.0
"""Only catches a command that hangs; a slow machine does not reach it."""

EMULATED = ("launch=emulated", "gpu=rtx5090", "model=qwen2.5-7b-instruct")
"""Overrides for an emulated engine, which needs neither a GPU nor weights."""

SMALL = (
    *("load.concurrency=[2]", "load.requests=4", "load.warmup_requests=0", "load.self_check=never", "tracking=none"),
    *("workload=unique", "workload.output_tokens=8"),
)
"""Overrides for a small load, for tests of what follows it."""


def quality_table(folder: Path, study: str) -> pd.DataFrame:
    """Return the graded answers of the only run of a study."""
    (path,) = folder.glob(f"outputs/{study}/*/quality.parquet")
    return pd.read_parquet(path)


def attached(url: str, *words: str, model: str = "tiny") -> tuple[str, ...]:
    """Return the overrides that select a running server, and more."""
    return ("engine=openai", "launch=attach", f"launch.base_url={url}", f"model.name={model}", *words)


def on_a_terminal(*words: str, cwd: Path, columns: int = 80) -> list[str]:
    """Return the lines that a command leaves on a terminal, without colours."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "servebench", *words]
    env = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
    shown = b""
    with subprocess.Popen(argv, cwd=cwd, env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        while part := _read(ours):
            shown += part
        os.close(ours)
        process.wait(COMMAND_LIMIT_S)
    return [line.rstrip() for line in shown.decode().splitlines()]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def run_program(
    *argv: str | Path,
    cwd: Path,
    code: int | None = None,
    env: Mapping[str, str] | None = None,
    limit_s: float = COMMAND_LIMIT_S,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end with `env` added to the environment, and capture what it writes. It must end with `code`, if that
    is given."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert code is None or done.returncode == code, done
    return done


def run_servebench(cwd: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `servebench WORDS`, with the options of `run_program`."""
    return run_program(sys.executable, "-m", "servebench", *words, cwd=cwd, **options)


@contextmanager
def servebench_started(
    cwd: Path, *words: str, env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start `servebench WORDS` in the background; kill what is left of it at the end. Its coverage is not measured: a signal that
    comes while coverage holds its own lock would hang the command."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    around = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "servebench", *words], cwd=cwd, env={**around, **(env or {})}, text=True, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
