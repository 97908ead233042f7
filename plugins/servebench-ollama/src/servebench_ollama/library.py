"""Add a model to Ollama's library before the engine starts."""

import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from servebench.plugin import (
    Command,
    EngineError,
    GuardedProcess,
    Say,
    accepts_connections,
    command_environment,
    free_port,
    gguf_files,
)

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 3600.0
"""Enough for a download of tens of gigabytes."""

POLL_S = 0.05
HOST = "127.0.0.1"


def source_of(path: Path) -> Path:
    """Return what to create the model from: a GGUF file, the only one in a folder or next to it with its name, else the folder
    itself, whose safetensors Ollama converts."""
    found = gguf_files(path)
    return found[0] if len(found) == 1 else path


def add_to_library(
    executable: str, name: str, path: str | None, *, env: Mapping[str, str], folder: Path, say: Say
) -> None:
    """Create the model `name` from `path`, or pull it if it is missing, with a temporary server on a free port.

    Raises EngineError (kind `model_missing` if Ollama rejects it).
    """
    port = free_port(HOST)
    server_env = {**env, "OLLAMA_HOST": f"{HOST}:{port}"}
    log = folder / "prepare.log"
    folder.mkdir(parents=True, exist_ok=True)
    server = GuardedProcess(Command(argv=(executable, "serve"), env=server_env), log, STOP_TIMEOUT_S)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not accepts_connections(HOST, port):
            if server.has_ended() or time.monotonic() > deadline:
                late = f"it did not listen within {START_TIMEOUT_S:g} s"
                reason = server.exit_description() if server.ended else late
                raise EngineError(f"cannot prepare the model with {executable}: {reason}; log: {log}", kind="died")
            time.sleep(POLL_S)
        if path is not None:
            _create(executable, name, source_of(Path(path).expanduser().absolute()), server_env, say)
        elif _run([executable, "show", name], server_env) is not None:
            say(f"pulling {name} with ollama (once)")
            advice = "check model.name, or set model.path= to a GGUF file"
            _run_or_fail([executable, "pull", name], server_env, advice)
    finally:
        server.stop()


def _create(executable: str, name: str, source: Path, env: Mapping[str, str], say: Say) -> None:
    say(f"adding {source.name} to ollama's library")
    with tempfile.TemporaryDirectory(prefix="servebench-") as folder:
        modelfile = Path(folder) / "Modelfile"
        modelfile.write_text(f"FROM {source}\n", encoding="utf-8")
        command = [executable, "create", name, "-f", str(modelfile)]
        _run_or_fail(command, env, "model.path must be a GGUF file or a model folder")


def _run(command: list[str], env: Mapping[str, str]) -> str | None:
    """Run a command; return None on success, else its last line of output."""
    try:
        done = subprocess.run(
            command, env=command_environment(command, env), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"took longer than {COMMAND_TIMEOUT_S:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def _run_or_fail(command: list[str], env: Mapping[str, str], advice: str) -> None:
    problem = _run(command, env)
    if problem is not None:
        raise EngineError(f"'ollama {' '.join(command[1:3])}' failed: {problem}; {advice}", kind="model_missing")
