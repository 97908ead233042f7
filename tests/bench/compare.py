"""Compare servebench with other load generators, each run as its users run it, on a server with a known schedule.

    python tests/bench/compare.py [--peers FOLDER] [--tokenizer FOLDER] [--only servebench,guidellm] [--levels 64,1000]

FOLDER is the folder of `install_peers.sh`; the tokenizer is a folder that transformers can load, which most tools need to
start. Prints a Markdown table. Errors are reported values minus the true ones of the same requests, so they hold on a busy
machine too. CPU cost and lateness do not: the load average is printed next to them.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import psutil
import yaml
from truth import server

PEERS = Path(__file__).with_name("peers.yaml")

TIMEOUT_S = 240
SAMPLE_S = 0.1


@dataclass(frozen=True)
class Level:
    """`streams` in parallel, `requests` in all, and the server's schedule."""

    streams: int
    requests: int
    ttft_us: int
    itl_us: int
    tokens: int


LEVELS = {
    64: Level(64, 320, 100_000, 20_000, 64),
    500: Level(500, 1500, 200_000, 50_000, 64),
    1000: Level(1000, 3000, 500_000, 50_000, 64),
    5000: Level(5000, 10_000, 500_000, 200_000, 32),
}


@dataclass(frozen=True)
class Run:
    """The parameters of one run of a tool."""

    port: int
    level: Level
    folder: Path
    tokenizer: str

    def fill(self, text: str) -> str:
        """Return the text with the parameters of the run in the places for them."""
        level = self.level
        return text.format(
            url=f"http://127.0.0.1:{self.port}",
            streams=level.streams,
            requests=level.requests,
            tokens=level.tokens,
            rounds=level.requests // level.streams,
            tokenizer=self.tokenizer,
            folder=self.folder,
        )


@dataclass(frozen=True)
class Reported:
    """The results that a tool reports, in milliseconds; None where it reports none."""

    ttft_mean: float | None
    ttft_p99: float | None
    itl_mean: float | None


@dataclass(frozen=True)
class Tool:
    """A load generator: its command, how to read its results, and whether it writes to the user's home."""

    name: str
    words: Callable[[Run], Sequence[str]]
    read: Callable[[Run], Reported]
    own_home: bool = False


SERVEBENCH = """-m servebench engine=openai launch=attach launch.base_url={url}/v1 model.name=truth tracking=none
telemetry.enabled=false workload=unique workload.input_tokens=64 workload.output_tokens={tokens} load.concurrency=[{streams}]
load.requests={requests} load.warmup_requests=0 study.dir={folder} study.name=s"""


def _read_servebench(run: Run) -> Reported:
    import numpy as np
    import pyarrow.parquet as pq

    (path,) = run.folder.glob("s/*/requests.parquet")
    table = pq.read_table(path).to_pandas()
    ok = table[(table.outcome == "ok") & ~table.warmup & ~table.filler]
    ttft = (ok.first_event_ns - ok.sent_ns) / 1e6
    gaps = np.concatenate([np.diff(stamps) for stamps in ok.event_ns]) / 1e6
    return Reported(float(ttft.mean()), float(np.percentile(ttft, 99)), float(gaps.mean()))


def tools(peers: Path | None) -> list[Tool]:
    found = [Tool("servebench", lambda run: [sys.executable, *map(run.fill, SERVEBENCH.split())], _read_servebench)]
    for name, peer in yaml.safe_load(PEERS.read_text(encoding="utf-8")).items():
        if peers is not None and (program := peers / name / "bin" / peer["program"]).exists():
            words, read = partial(_peer_words, str(program), peer), partial(_read_peer, peer)
            found.append(Tool(name, words, read, peer.get("own_home", False)))
    return found


def _peer_words(program: str, peer: Mapping[str, Any], run: Run) -> list[str]:
    if "settings" in peer:
        (run.folder / "settings.json").write_text(json.dumps(_filled(peer["settings"], run)))
    return [program, *map(run.fill, peer["words"].split())]


def _filled(value: Any, run: Run) -> Any:
    """Return a peer's settings with the parameters of the run: as numbers where they are."""
    if isinstance(value, dict):
        return {key: _filled(item, run) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, run) for item in value]
    if not isinstance(value, str):
        return value
    text = run.fill(value)
    return int(text) if text.isdigit() else text


def _read_peer(peer: Mapping[str, Any], run: Run) -> Reported:
    document = json.loads(next(run.folder.glob(peer["result"])).read_text())
    document = document.get(peer.get("within"), document)

    def figure(name: str) -> float | None:
        if name not in peer:
            return None
        value = reduce(getitem, peer[name], document)
        value = sorted(value)[int(0.99 * len(value))] if isinstance(value, list) else value
        return float(peer.get("ms", 1) * value)

    return Reported(figure("ttft_mean"), figure("ttft_p99"), figure("itl_mean"))


class Memory(threading.Thread):
    """Samples the peak resident memory of a process and its descendants; shared pages count for each."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.root = psutil.Process(pid)
        self.most = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Sample until `over` is set."""
        while not self.over.wait(SAMPLE_S):
            total = 0
            try:
                for process in [self.root, *self.root.children(recursive=True)]:
                    total += process.memory_info().rss
            except psutil.Error:
                continue
            self.most = max(self.most, total)


def once(tool: Tool, level: Level, tokenizer: str) -> dict[str, float | None] | str:
    """Run a tool once and return its figures, or one line of text if it failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "out").mkdir()
        with server(folder, level.ttft_us, level.itl_us, level.tokens) as (port, truth_file):
            run = Run(port, level, folder / "out", tokenizer)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            began_ns = time.time_ns()
            environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
            if tool.own_home:
                environment["HOME"] = str(folder)
            with subprocess.Popen(
                tool.words(run), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, env=environment
            ) as process:
                memory = Memory(process.pid)
                memory.start()
                try:
                    said, _ = process.communicate(timeout=TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    for child in psutil.Process(process.pid).children(recursive=True):
                        with contextlib.suppress(psutil.Error):
                            child.kill()
                    process.kill()
                    return f"timed out after {TIMEOUT_S} s"
                finally:
                    memory.over.set()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if process.returncode != 0:
                lines = said.decode(errors="replace").strip().splitlines()
                return f"exit code {process.returncode}: {lines[-1] if lines else ''}"
            try:
                reported = tool.read(run)
            except (KeyError, ValueError, OSError, StopIteration) as error:
                return f"cannot read its result: {error!r}"
        stamps = [[int(field) for field in line.split()[1:]] for line in truth_file.read_text().splitlines()]
        true_ttft = sum(s[1] - s[0] for s in stamps) / len(stamps) / 1e6
        true_itl = sum(s[-1] - s[1] for s in stamps) / sum(len(s) - 2 for s in stamps) / 1e6
        ordered = sorted((s[1] - s[0]) / 1e6 for s in stamps)
        events = sum(len(s) - 1 for s in stamps)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        span_s = (max(s[-1] for s in stamps) - min(s[0] for s in stamps)) / 1e9
        return {
            "ttft_error_ms": None if reported.ttft_mean is None else reported.ttft_mean - true_ttft,
            "ttft_p99_error_ms": None
            if reported.ttft_p99 is None
            else reported.ttft_p99 - ordered[int(0.99 * len(ordered))],
            "itl_error_ms": None if reported.itl_mean is None else reported.itl_mean - true_itl,
            "cpu_s": cpu_s,
            "events": events,
            "tokens_s": events / span_s,
            "memory_mb": memory.most / 2**20,
            "first_request_s": (min(s[0] for s in stamps) - began_ns) / 1e9,
        }


@cache
def idle_cpu_s(tool: Tool, tokenizer: str) -> float:
    """Return the CPU time of a run of one request: the minimum of two, as the first also fills caches. 0 if it failed."""
    alone = [once(tool, Level(1, 1, 1000, 1000, 8), tokenizer) for _ in range(2)]
    return min((found["cpu_s"] or 0.0 for found in alone if isinstance(found, dict)), default=0.0)


def table(chosen: Sequence[Tool], level: Level, tokenizer: str) -> str:
    lines = [
        f"{level.streams} streams, {level.requests} requests, TTFT {level.ttft_us / 1000:g} ms, "
        f"ITL {level.itl_us / 1000:g} ms, {level.tokens} tokens",
        "",
        "| client | TTFT error, mean / p99 ms | ITL error, mean ms | CPU per event, us | tokens/s | memory, MB | "
        "first request after, s | load average |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for tool in chosen:
        idle_s = idle_cpu_s(tool, tokenizer)
        found = once(tool, level, tokenizer)
        busy = os.getloadavg()[0]
        if isinstance(found, str):
            lines.append(f"| {tool.name} | {found[:100]} | | | | | | {busy:.1f} |")
            continue
        cpu_us = 1e6 * ((found["cpu_s"] or 0.0) - idle_s) / (found["events"] or 1)
        lines.append(
            f"| {tool.name} | {_signed(found['ttft_error_ms'])} / {_signed(found['ttft_p99_error_ms'])} "
            f"| {_signed(found['itl_error_ms'])} | {cpu_us:.3g} | {found['tokens_s']:.0f} "
            f"| {found['memory_mb']:.0f} | {found['first_request_s']:.1f} | {busy:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}" if abs(value) < 1 else f"{value:+.1f}"


def main() -> None:
    """Measure and print."""
    words = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    words.add_argument("--peers", type=Path, default=os.environ.get("SERVEBENCH_PEERS"))
    words.add_argument("--tokenizer", default=os.environ.get("SERVEBENCH_TOKENIZER", "gpt2"))
    words.add_argument("--only", default="")
    words.add_argument("--levels", default="64,1000")
    asked = words.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    names = [name for name in asked.only.split(",") if name]
    chosen = [tool for tool in tools(asked.peers and Path(asked.peers)) if not names or tool.name in names]
    for streams in asked.levels.split(","):
        sys.stdout.write(table(chosen, LEVELS[int(streams)], asked.tokenizer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
