"""llama.cpp's HTTP server inside a Python process, by the flags of `llama-server` that the engine uses.

    python -m servebench_llamacpp.server --model FILE --alias NAME --host HOST --port PORT ...

Ends with 1 and one line on standard error when the model cannot be loaded, with 0 after SIGTERM or SIGINT. A signal that
comes while the model loads ends it at once: the native code would not let Python see it.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from servebench_llamacpp.parameters import set_field


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


def parameters(asked: argparse.Namespace) -> Any:
    """The server's parameters. Raises ValueError for one that it does not have."""
    import xllamacpp

    common = xllamacpp.CommonParams()
    # what is not set is llama.cpp's default, not what it makes of the free memory
    common.fit_params = False
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
        set_field(common, name, text)
    return common


def bind_fault(host: str, port: int) -> str | None:
    """Why nobody can listen there; the native server would only say that it failed."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return f"couldn't bind {host}:{port}: {error.strerror or error}"
    return None


def fail(reason: str) -> NoReturn:
    """One line, and no waiting for native threads."""
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Serve until told to end."""
    asked = arguments(sys.argv[1:])
    stopping = {signal.SIGTERM, signal.SIGINT}
    for number in stopping:
        signal.signal(number, signal.SIG_DFL)
    fault = bind_fault(asked.host, asked.port)
    if fault is not None:
        fail(fault)
    try:
        import xllamacpp

        common = parameters(asked)
    except (ImportError, ValueError) as error:
        fail(str(error))
    try:
        server = xllamacpp.Server(common)
    except RuntimeError as error:
        fail(f"cannot load the model {asked.model}: {error}")
    for number in stopping:
        # at once: its destructor would wait for requests in flight, and there is nothing to be saved
        signal.signal(number, lambda *_: os._exit(0))
    sys.stdout.write(f"serving at {server.listening_address}\n")
    sys.stdout.flush()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
