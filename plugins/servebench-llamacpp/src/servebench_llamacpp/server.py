"""llama.cpp's HTTP server inside a Python process, by the flags of `llama-server` that the engine uses.

    python -m servebench_llamacpp.server --model FILE --alias NAME --host HOST --port PORT ...

Ends with 1 and one line on standard error when the model cannot be loaded. SIGTERM and SIGINT end it at once: the
process holds nothing that would have to be saved.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="servebench_llamacpp.server", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int)
    parser.add_argument("--threads-http", type=int)
    parser.add_argument("--ctx-size", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--n-gpu-layers", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--cache-ram", type=int)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--cache-prompt", action=argparse.BooleanOptionalAction)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args(words)


def _convert(old: Any, text: str) -> Any:
    if isinstance(old, bool):
        return text.lower() in ("true", "1", "yes", "on")
    return type(old)(text) if isinstance(old, (int, float)) else text


def parameters(asked: argparse.Namespace) -> Any:
    """The server's parameters. Raises ValueError for one that it does not have."""
    import xllamacpp

    common = xllamacpp.CommonParams()
    common.model.path = asked.model
    common.model_alias = {asked.alias}
    common.hostnames = [asked.host]
    common.port = asked.port
    common.endpoint_metrics = asked.metrics
    common.n_threads_http = asked.threads_http if asked.threads_http is not None else common.n_threads_http
    common.cpuparams.n_threads = asked.threads or os.cpu_count() or 1
    for name, value in {
        "n_parallel": asked.parallel,
        "n_ctx": asked.ctx_size,
        "n_gpu_layers": asked.n_gpu_layers,
        "cache_ram_mib": asked.cache_ram,
        "cache_prompt": asked.cache_prompt,
    }.items():
        if value is not None:
            setattr(common, name, value)
    if asked.cache_ram == 0:
        common.cache_idle_slots = False
    if asked.seed is not None:
        common.sampling.seed = asked.seed
    for pair in asked.set:
        name, _, text = pair.partition("=")
        owner, _, leaf = name.rpartition(".")
        holder = getattr(common, owner) if owner else common
        setattr(holder, leaf, _convert(getattr(holder, leaf), text))
    return common


def main() -> int:
    """Serve until told to end."""
    asked = arguments(sys.argv[1:])
    # without this, a SIGTERM that comes while the model loads waits for the native code to return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((asked.host, asked.port))
        except OSError as error:
            sys.stderr.write(f"couldn't bind {asked.host}:{asked.port}: {error.strerror}\n")
            return 1
    try:
        import xllamacpp

        server = xllamacpp.Server(parameters(asked))
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        sys.stderr.write(f"cannot load the model {asked.model}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    print(f"serving at {server.listening_address}", flush=True)  # noqa: T201
    while True:
        signal.pause()


if __name__ == "__main__":
    raise SystemExit(main())
