"""What `servebench record` adds to a token, against `truth_server.c`: with the proxy, with `relay.c`, which only copies, and with
neither, in turns.

    python tests/bench/proxy.py [--streams 16] [--itl-us 20000] [--tokens 100] [--rounds 4] [--turns 3]

Prints a line of JSON for each number of streams: how long tokens are on the way from the server to the client's kernel, and what
the proxy and the relay add to that and to TTFT.
"""

import argparse
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import truth

SETTINGS: dict[str, Any] = {"ttft_us": 50_000, "itl_us": 20_000, "tokens": 100, "rounds": 4}


@contextmanager
def recorder(service_port: int) -> Iterator[int]:
    """Run the proxy in front of a port; yields its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        words = ["record", "--to", str(trace), "--port", str(port), "--", f"http://127.0.0.1:{service_port}"]
        with subprocess.Popen([sys.executable, "-m", "servebench", *words], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                yield port
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(60)


@contextmanager
def bare_relay(service_port: int) -> Iterator[int]:
    """Run a relay that only copies in front of a port; yields its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        words = [str(truth.build_program(Path(folder), "relay")), str(port), str(service_port)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                yield port
            finally:
                process.kill()


def added(*, streams: int, turns: int = 3, **settings: int) -> dict[str, float]:
    """Return the median over turns of each figure, direct and through each proxy, and the differences of the medians."""
    names = ("token_ms_p50", "token_ms_p99", "ttft_error_ms_mean", "ttft_error_ms_p99")
    ways: dict[str, Callable[[int], AbstractContextManager[int]]] = {
        "direct": nullcontext,
        "proxy": recorder,
        "relay": bare_relay,
    }
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in ways}
    for _ in range(turns):
        for kind, way in ways.items():
            found[kind].append(truth.measure(streams=streams, **SETTINGS | settings, through=way))
    middle = {(kind, name): statistics.median(one[name] for one in found[kind]) for kind in found for name in names}
    return {
        "streams": streams,
        "failed": sum(one["failed"] for kind in found.values() for one in kind),
        **{f"{name}_{kind}": round(value, 4) for (kind, name), value in middle.items()},
        **{
            f"{name}_added{of}": round(middle[kind, name] - middle["direct", name], 4)
            for kind, of in (("proxy", ""), ("relay", "_by_relay"))
            for name in names
        },
    }


def main() -> None:
    """Measure and print."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    for name, value in ({**SETTINGS, "turns": 3}).items():
        words.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    asked = vars(words.parse_args())
    for streams in asked.pop("streams"):
        sys.stdout.write(json.dumps(added(streams=streams, **asked)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
