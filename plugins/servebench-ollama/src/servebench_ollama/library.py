"""Ollama's own library of models: making a file, or a name, known to it before the engine is started."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from servebench.plugin import Command, EngineError, GuardedProcess, Say, accepts_connections, free_port

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 3600.0
"""A download of tens of gigabytes takes its time."""

POLL_S = 0.05
HOST = "127.0.0.1"


def source_of(path: Path) -> Path:
    """What to create the model from: a GGUF file, the one in a folder or beside it with its name, else the folder itself,
    whose safetensors Ollama converts."""
    if not path.is_dir():
        return path
    inside = sorted(path.glob("*.gguf"))
    found = inside or sorted(one for one in path.parent.glob("*.gguf") if one.name.startswith(path.name))
    return found[0] if len(found) == 1 else path


def make_known(executable: str, name: str, path: str | None, *, env: Mapping[str, str], folder: Path, say: Say) -> None:
    """Create `name` from `path`, or pull it if it is not there yet; a server of its own runs meanwhile, on a port of its
    own. Raises EngineError (kind `model_missing` when Ollama refuses)."""
    port = free_port(HOST)
    ours = {**env, "OLLAMA_HOST": f"{HOST}:{port}"}
    log = folder / "prepare.log"
    server = GuardedProcess(Command(argv=(executable, "serve"), env=ours), log, STOP_TIMEOUT_S)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not accepts_connections(HOST, port):
            if server.has_ended() or time.monotonic() > deadline:
                how = server.exit_description() if server.ended else f"it did not listen within {START_TIMEOUT_S:g} s"
                raise EngineError(f"cannot prepare the model with {executable}: {how}; its log is {log}", kind="died")
            time.sleep(POLL_S)
        if path is not None:
            _create(executable, name, source_of(Path(path).expanduser().absolute()), ours, say)
        elif _run([executable, "show", name], ours) is not None:
            say(f"pulling {name} with ollama, once")
            _must([executable, "pull", name], ours, name, "check model.name, or give a GGUF file with model.path=")
    finally:
        server.stop()


def _create(executable: str, name: str, source: Path, env: Mapping[str, str], say: Say) -> None:
    say(f"making {source.name} known to ollama")
    with tempfile.TemporaryDirectory(prefix="servebench-") as folder:
        recipe = Path(folder) / "Modelfile"
        recipe.write_text(f"FROM {source}\n", encoding="utf-8")
        _must(
            [executable, "create", name, "-f", str(recipe)],
            env,
            name,
            "model.path must be a GGUF file or a model folder",
        )


def _run(words: list[str], env: Mapping[str, str]) -> str | None:
    """None when it went well, else its last words."""
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {COMMAND_TIMEOUT_S:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with {done.returncode}"


def _must(words: list[str], env: Mapping[str, str], name: str, advice: str) -> None:
    fault = _run(words, env)
    if fault is not None:
        raise EngineError(f"ollama {words[1]} {name}: {fault}; {advice}", kind="model_missing")
