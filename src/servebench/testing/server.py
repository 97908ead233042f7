"""The emulator as the server of conformance tests: in a thread of this process, or as an executable."""

import asyncio
import shlex
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from servebench.contracts.emulation import EmulationSpec, to_json
from servebench.emulator.connection import ServerConnection
from servebench.emulator.engine import EmulatedEngine

HOST = "127.0.0.1"
LOG_GAP = "sleep 0.06"
"""A launcher reads the log 20 times per second; separate lines then get separate timestamps."""

FAST = {"context_length": 1 << 30, "parameters_b": 0.001, "layers": 1, "kv_heads": 1, "head_dim": 1}
"""A model whose prompts of any length take almost no time and memory."""


def plain_server(model: str, *, port: int = 0, answers: Mapping[str, str] | None = None) -> EmulationSpec:
    """Return an OpenAI-compatible server of a model, with the answers to some prompts (the last message of a chat)."""
    return EmulationSpec(engine="openai", model_name=model, host=HOST, port=port, model=FAST, answers=answers or {})


class FakeServer:
    """An emulated server in a thread of this process, as a context manager; it listens on a free port."""

    base_url: str

    def __init__(self, spec: EmulationSpec) -> None:
        self._spec = replace(spec, host=HOST, port=0)
        self._connections: list[ServerConnection] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    async def _listen(self) -> int:
        engine = EmulatedEngine(self._spec, self._loop)
        engine.ready = True

        def accept() -> ServerConnection:
            self._connections.append(ServerConnection(engine))
            return self._connections[-1]

        self._server = await self._loop.create_server(accept, HOST, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _close(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.reset()
        # their sockets are closed in the next round
        self._loop.call_soon(self._loop.stop)

    def __enter__(self) -> Self:
        """Start serving."""
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.base_url = f"http://{HOST}:{port}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and free the port."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        self._thread.join()
        self._loop.close()


def write_stand_in(
    path: Path,
    spec: EmulationSpec,
    *,
    log: Sequence[str] = (),
    dies_with: tuple[str, int] | None = None,
    exit_codes: Mapping[str, int] | None = None,
) -> Path:
    """Write the executable to `path` and return it.

    It prints the lines of `log`, then is the emulator of `spec` and ignores its arguments. A first argument in `exit_codes`
    makes it exit with that code instead. With `dies_with` it prints that line and exits with that code instead of serving.
    """
    lines = ["#!/bin/sh"]
    for argument, code in (exit_codes or {}).items():
        lines.append(f'[ "$1" = {shlex.quote(argument)} ] && exit {code}')
    for line in log:
        lines += [f"printf '%s\\n' {shlex.quote(line)}", LOG_GAP]
    if dies_with is not None:
        lines += [f"printf '%s\\n' {shlex.quote(dies_with[0])}", f"exit {dies_with[1]}"]
    lines.append(shlex.join(["exec", sys.executable, "-P", "-m", "servebench.emulator", "--spec", to_json(spec)]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path
