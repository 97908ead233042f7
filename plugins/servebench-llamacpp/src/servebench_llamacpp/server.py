"""Run llama.cpp's HTTP server in a Python process, with the flags of `llama-server` that the engine uses.

    python -m servebench_llamacpp.server --model FILE --alias NAME --host HOST --port PORT ...

Exits with 1 and one line on standard error if the model cannot be loaded, with 0 after SIGTERM or SIGINT. A signal during
loading ends it at once, since Python cannot handle it while native code runs.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from servebench_llamacpp.parameters import set_field


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="servebench_llamacpp.server", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    for flag in ("parallel", "ctx-size", "threads", "n-gpu-layers", "seed", "cache-ram"):
        parser.add_argument(f"--{flag}", type=int)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--cache-prompt", action=argparse.BooleanOptionalAction)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args(argv)


def server_parameters(options: argparse.Namespace) -> Any:
    """Return the server's parameters. Raises ValueError for an unknown one."""
    import xllamacpp

    common = xllamacpp.CommonParams()
    # unset values get llama.cpp's defaults instead of values that fit the free memory
    common.fit_params = False
    common.model.path = options.model
    common.model_alias = {options.alias}
    common.hostnames = [options.host]
    common.port = options.port
    common.endpoint_metrics = options.metrics
    common.cpuparams.n_threads = options.threads or os.cpu_count() or 1
    for name, value in {
        "n_parallel": options.parallel,
        "n_ctx": options.ctx_size,
        "n_gpu_layers": options.n_gpu_layers,
        "cache_ram_mib": options.cache_ram,
        "cache_prompt": options.cache_prompt,
    }.items():
        if value is not None:
            setattr(common, name, value)
    if options.cache_ram == 0:
        common.cache_idle_slots = False
    if options.seed is not None:
        common.sampling.seed = options.seed
    for pair in options.set:
        name, _, text = pair.partition("=")
        set_field(common, name, text)
    return common


def bind_problem(host: str, port: int) -> str | None:
    """Return why the address cannot be used; the native server would only report a failure."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return f"couldn't bind {host}:{port}: {error.strerror or error}"
    return None


def fail(reason: str) -> NoReturn:
    """Print one line and exit without waiting for native threads."""
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Serve until a stop signal."""
    options = parse_arguments(sys.argv[1:])
    stop_signals = {signal.SIGTERM, signal.SIGINT}
    for number in stop_signals:
        signal.signal(number, signal.SIG_DFL)
    problem = bind_problem(options.host, options.port)
    if problem is not None:
        fail(problem)
    try:
        import xllamacpp

        common = server_parameters(options)
    except (ImportError, ValueError) as error:
        fail(str(error))
    try:
        server = xllamacpp.Server(common)
    except RuntimeError as error:
        fail(f"cannot load the model {options.model}: {error}")
    for number in stop_signals:
        # exit at once: the destructor would wait for requests in flight, and there is nothing to save
        signal.signal(number, lambda *_: os._exit(0))
    sys.stdout.write(f"serving at {server.listening_address}\n")
    sys.stdout.flush()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
