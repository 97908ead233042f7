"""servebench's own client against `truth_server.c`, whose schedule is known: its error and its CPU cost.

    python tests/bench/truth.py [--streams 1000] [--ttft-us 500000] [--itl-us 50000] [--tokens 100] [--rounds 3]
                                  [--workers 1] [--limit]

Prints one JSON object. `*_error_ms_*` are measured values minus true ones, request by request (TTFT) and gap by gap (ITL).
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from servebench.contracts.exchange import PlannedRequest, PointPlan, Target
from servebench.contracts.phase import PhaseFacts
from servebench.load.client.spool import read_spool
from servebench.load.coordinator.drive import drive, worker_spools
from servebench.measure import derive

HERE = Path(__file__).parent
PROMPT = "word " * 64


def build_program(folder: Path, name: str = "truth_server") -> Path:
    """Compile a C program of this folder into another. Raises CalledProcessError, FileNotFoundError without a compiler."""
    program = folder / name
    if not program.exists():
        subprocess.run(["cc", "-O2", "-o", program, HERE / f"{name}.c"], check=True, capture_output=True)
    return program


@contextlib.contextmanager
def server(
    folder: Path, ttft_us: int, itl_us: int, tokens: int, tokens_per_event: int = 1
) -> Iterator[tuple[int, Path]]:
    """Run a truth server; yields its port, and the file that holds the truth after it has stopped."""
    truth = folder / f"truth-{time.time_ns()}"
    words = [str(build_program(folder)), "0", str(ttft_us), str(itl_us), str(tokens), str(tokens_per_event), str(truth)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[1])
        try:
            yield port, truth
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


def read_truth(path: Path) -> dict[str, np.ndarray]:
    """Return for each answered request when it reached the kernel, then when each event was handed over."""
    return {
        name: np.array(stamps, dtype=np.int64)
        for name, *stamps in (line.split() for line in path.read_text().splitlines())
    }


def body(name: str, tokens: int) -> bytes:
    """Return a chat request for the truth server."""
    return json.dumps(
        {
            "model": "truth",
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": tokens,
            "stream": True,
            "user": name,
        },
        separators=(",", ":"),
    ).encode()


def errors(measured: dict[str, tuple[float | None, list[int]]], truth: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the errors of TTFT and ITL in milliseconds, and how long tokens were on the way; `measured` has (TTFT ms, event
    stamps) by request."""
    ttft, itl, way = [], [], []
    for name, (ttft_ms, stamps) in measured.items():
        true = truth.get(name)
        if true is None or ttft_ms is None:
            continue
        ttft.append(ttft_ms - (true[1] - true[0]) / 1e6)
        if len(stamps) == true.size - 1:
            itl.append((np.diff(stamps) - np.diff(true[1:])) / 1e6)
            way.append((np.array(stamps) - true[1:]) / 1e6)
    gaps = np.concatenate(itl) if itl else np.empty(0)
    found: dict[str, float] = {}
    if way:
        found = {f"token_ms_p{rank}": float(np.percentile(np.concatenate(way), rank)) for rank in (50, 99)}
    for name, values in (("ttft", np.array(ttft)), ("itl", gaps)):
        if values.size:
            found[f"{name}_error_ms_mean"] = float(values.mean())
            found[f"{name}_error_ms_p99"] = float(np.percentile(np.abs(values), 99))
            found[f"{name}_error_ms_max"] = float(np.abs(values).max())
    return found


def measure(
    *,
    streams: int,
    ttft_us: int,
    itl_us: int,
    tokens: int,
    rounds: int = 3,
    workers: int = 1,
    tokens_per_event: int = 1,
    through: Callable[[int], AbstractContextManager[int]] = contextlib.nullcontext,
) -> dict[str, float]:
    """Drive `rounds` requests per stream in a closed loop and compare with the truth. `through` starts what lies between: it gets
    the port of the server and gives the one to send to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = server(folder, ttft_us, itl_us, tokens, tokens_per_event)
        with started as (server_port, truth_file), through(server_port) as port:
            requests = [
                PlannedRequest(request_id=f"r{i}", path="/v1/chat/completions", body=body(f"r{i}", tokens))
                for i in range(streams * rounds)
            ]
            plan = PointPlan(requests=requests, concurrency=streams, timeout_s=120.0, connect_timeout_s=20.0)
            spool = folder / "bench.spool"
            spool.touch()
            target = Target(host="127.0.0.1", port=port)
            report = drive(target, plan, spool=spool, watch=lambda counts: None, workers=workers)
        facts = PhaseFacts(run_id="", point="", warmup=False, concurrency=streams, repeat=0, planned={})
        events, merged, failed, measured = 0, 0, 0, {}
        for path in worker_spools(spool, workers):
            for exchange in read_spool(path):
                record = derive.record(exchange, facts)
                events += len(record.event_ns)
                merged += record.reads_merged
                failed += record.outcome != "ok"
                measured[record.request_id] = (derive.ttft_ms(record), record.event_ns)
        return {
            "streams": streams,
            "workers": workers,
            "requests": len(measured),
            "failed": failed,
            "events": events,
            "merged": merged,
            **errors(measured, read_truth(truth_file)),
            "cpu_us_an_event": 1e6 * report.cpu_s / max(events, 1),
            "events_s": events / report.elapsed_s,
            "loop_lag_ms_p99": report.loop_lag_ms_p99 or 0.0,
            "load_average": os.getloadavg()[0],
        }


def limit(*, streams: int, ttft_us: int, itl_us: int, tokens: int, rounds: int = 3) -> dict[str, float]:
    """Drive the same load from `epoll_client.c`, the cheapest possible client: the upper limit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build_program(folder, "epoll_client")
        with server(folder, ttft_us, itl_us, tokens) as (port, truth_file):
            words = [str(program), str(port), str(streams), str(streams * rounds), str(tokens)]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        truth = read_truth(truth_file)
        true_ttft_ms = float(np.mean([(stamps[1] - stamps[0]) / 1e6 for stamps in truth.values()]))
        return {
            "streams": streams,
            "events": found["events"],
            "ttft_error_ms_mean": found["ttft_ms_mean"] - true_ttft_ms,
            "cpu_us_an_event": 1e6 * found["cpu_s"] / found["events"],
            "events_s": found["events"] / found["elapsed_s"],
            "load_average": os.getloadavg()[0],
        }


def main() -> None:
    """Measure once and print the result."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("streams", 1000), ("ttft-us", 500_000), ("itl-us", 50_000), ("tokens", 100), ("rounds", 3)):
        words.add_argument(f"--{name}", type=int, default=value)
    words.add_argument("--workers", type=int, default=1)
    words.add_argument("--tokens-per-event", type=int, default=1)
    words.add_argument("--limit", action="store_true", help="use the C client instead")
    asked = vars(words.parse_args())
    if asked.pop("limit"):
        found = limit(**{name: asked[name] for name in ("streams", "ttft_us", "itl_us", "tokens", "rounds")})
    else:
        found = measure(**asked)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
