"""What `servebench record` adds to a token, against `truth_server.c`: with the proxy and without it, in turns.

    python tests/bench/proxy.py [--streams 16] [--itl-us 20000] [--tokens 100] [--rounds 4] [--turns 3]

Prints a line of JSON for each number of streams: how long tokens are on the way from the server to the client's kernel, and what
the proxy adds to that and to TTFT.
"""

import argparse
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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


def added(*, streams: int, turns: int = 3, **settings: int) -> dict[str, float]:
    """Return the median over turns of each figure, direct and through the proxy, and the difference of the medians."""
    names = ("token_ms_p50", "token_ms_p99", "ttft_error_ms_mean", "ttft_error_ms_p99")
    found: dict[str, list[dict[str, float]]] = {"direct": [], "proxy": []}
    for _ in range(turns):
        found["direct"].append(truth.measure(streams=streams, **SETTINGS | settings))
        found["proxy"].append(truth.measure(streams=streams, **SETTINGS | settings, through=recorder))
    middle = {(kind, name): statistics.median(one[name] for one in found[kind]) for kind in found for name in names}
    return {
        "streams": streams,
        "failed": sum(one["failed"] for kind in found.values() for one in kind),
        **{f"{name}_{kind}": round(value, 4) for (kind, name), value in middle.items()},
        **{f"{name}_added": round(middle["proxy", name] - middle["direct", name], 4) for name in names},
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
