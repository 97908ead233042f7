"""Compare servebench with other load generators, each run as its users run it, on a server with a known schedule.

    python tests/bench/compare.py [--peers FOLDER] [--tokenizer FOLDER] [--only servebench,guidellm] [--levels 64,1000]

FOLDER is the folder of `install_peers.sh`; the tokenizer is a folder that transformers can load, which most tools need to
start. Prints a Markdown table. Errors are reported values minus the true ones of the same requests, so they hold on a busy
machine too. CPU cost and lateness do not: the load average is printed next to them.
"""

import argparse
import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from truth import server

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

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"


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


def _servebench(run: Run) -> list[str]:
    level = run.level
    return [
        *(sys.executable, "-m", "servebench", "engine=openai", "launch=attach", f"launch.base_url={run.url}/v1"),
        *(
            "model.name=truth",
            "tracking=none",
            "telemetry.enabled=false",
            "workload=unique",
            "workload.input_tokens=64",
        ),
        *(f"workload.output_tokens={level.tokens}", f"load.concurrency=[{level.streams}]"),
        *(f"load.requests={level.requests}", "load.warmup_requests=0", f"study.dir={run.folder}", "study.name=s"),
    ]


def _read_servebench(run: Run) -> Reported:
    import numpy as np
    import pyarrow.parquet as pq

    (path,) = run.folder.glob("s/*/requests.parquet")
    table = pq.read_table(path).to_pandas()
    ok = table[(table.outcome == "ok") & ~table.warmup & ~table.filler]
    ttft = (ok.first_event_ns - ok.sent_ns) / 1e6
    gaps = np.concatenate([np.diff(stamps) for stamps in ok.event_ns]) / 1e6
    return Reported(float(ttft.mean()), float(np.percentile(ttft, 99)), float(gaps.mean()))


def _vllm(run: Run) -> list[str]:
    """The compiled client takes the same arguments: `VLLM_USE_RUST_BENCH=1 vllm` executes `vllm-rs`."""
    level = run.level
    return [
        *("bench", "serve", "--backend", "openai-chat", "--base-url", run.url, "--endpoint", "/v1/chat/completions"),
        *("--model", "truth", "--tokenizer", run.tokenizer, "--dataset-name", "random", "--random-input-len", "64"),
        *("--random-output-len", str(level.tokens), "--num-prompts", str(level.requests), "--ignore-eos"),
        *("--max-concurrency", str(level.streams), "--save-result", "--result-dir", str(run.folder)),
        *("--result-filename", "r.json", "--disable-tqdm"),
    ]


def _read_vllm(run: Run) -> Reported:
    found = json.loads((run.folder / "r.json").read_text())
    return Reported(found["mean_ttft_ms"], found["p99_ttft_ms"], found["mean_itl_ms"])


def _sglang(run: Run) -> list[str]:
    level = run.level
    return [
        *("--backend", "sglang-oai-chat", "--base-url", run.url, "--model", "truth", "--tokenizer", run.tokenizer),
        *("--dataset-name", "random-ids", "--random-input-len", "64", "--random-output-len", str(level.tokens)),
        *("--random-range-ratio", "1", "--num-prompts", str(level.requests), "--max-concurrency", str(level.streams)),
        *("--warmup-requests", "0", "--output-file", f"{run.folder}/r.json", "--disable-tqdm"),
    ]


def _guidellm(run: Run) -> list[str]:
    level = run.level
    return [
        *("run", "--backend", f"kind=openai_http,target={run.url},model=truth", "--disable-progress"),
        *("--tokenizer", f"kind=huggingface_auto,model={run.tokenizer}"),
        *("--profile", f"kind=concurrent,streams={level.streams}"),
        *("--constraint", f"kind=max_requests,count={level.requests}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={level.tokens}"),
        *("--output", f"kind=json,path={run.folder}/r.json"),
    ]


def _read_guidellm(run: Run) -> Reported:
    (path,) = run.folder.glob("*.json")
    metrics = json.loads(path.read_text())["benchmarks"][0]["metrics"]
    ttft, itl = metrics["time_to_first_token_ms"]["successful"], metrics["inter_token_latency_ms"]["successful"]
    return Reported(ttft["mean"], ttft["percentiles"]["p99"], itl["mean"])


def _aiperf(run: Run) -> list[str]:
    level = run.level
    return [
        *("profile", "--model", "truth", "--url", run.url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", run.tokenizer, "--concurrency", str(level.streams), "--request-count", str(level.requests)),
        *("--synthetic-input-tokens-mean", "64", "--output-tokens-mean", str(level.tokens)),
        *("--artifact-dir", str(run.folder), "--ui", "none"),
    ]


def _read_aiperf(run: Run) -> Reported:
    path = next(run.folder.rglob("profile_export_aiperf.json"))
    found = json.loads(path.read_text())
    found = found.get("records", found)
    return Reported(
        found["time_to_first_token"]["avg"], found["time_to_first_token"]["p99"], found["inter_token_latency"]["avg"]
    )


def _genai_bench(run: Run) -> list[str]:
    level = run.level
    return [
        *("benchmark", "--api-backend", "openai", "--api-base", run.url, "--api-key", "none"),
        *("--api-model-name", "truth", "--model-tokenizer", run.tokenizer, "--task", "text-to-text"),
        *("--traffic-scenario", f"D(64,{level.tokens})", "--num-concurrency", str(level.streams)),
        *("--max-requests-per-run", str(level.requests), "--max-time-per-run", str(TIMEOUT_S // 60 - 1)),
        *("--metrics-time-unit", "ms", "--experiment-base-dir", str(run.folder), "--experiment-folder-name", "r"),
        *("--log-dir", str(run.folder)),
    ]


def _read_genai_bench(run: Run) -> Reported:
    """Read its result, which has TPOT but no gaps between tokens."""
    path = next(run.folder.glob("r/D64_*.json"))
    ttft = json.loads(path.read_text())["aggregated_metrics"]["stats"]["ttft"]
    return Reported(ttft["mean"], ttft["p99"], None)


def _llama_benchy(run: Run) -> list[str]:
    """It is no closed loop: it sends batches of `streams` and waits for each. Its text comes from the server, not from a book."""
    level = run.level
    return [
        *("--base-url", f"{run.url}/v1", "--model", "truth", "--tokenizer", run.tokenizer, "--pp", "64"),
        *("--tg", str(level.tokens), "--exact-tg", "--concurrency", str(level.streams)),
        *("--runs", str(level.requests // level.streams), "--no-warmup", "--no-adapt-prompt", "--skip-coherence"),
        *("--book-url", f"{run.url}/v1/models", "--save-result", f"{run.folder}/r.json", "--format", "json"),
    ]


def _read_llama_benchy(run: Run) -> Reported:
    ttft = json.loads((run.folder / "r.json").read_text())["benchmarks"][0]["e2e_ttft"]
    ordered = sorted(ttft["values"])
    return Reported(ttft["mean"], ordered[int(0.99 * len(ordered))], None)


def _inference_perf(run: Run) -> list[str]:
    """Only its generator for images makes chat prompts of a given length; it is configured for no images."""
    level = run.level

    def length(tokens: int) -> dict[str, str | int]:
        same = {"min": tokens, "max": tokens, "mean": tokens, "std_dev": 0}
        return {"type": "fixed", "total_count": level.requests, **same}

    data = {"input_distribution": length(64), "output_distribution": length(level.tokens)}
    settings = {
        "api": {"type": "chat", "streaming": True},
        "server": {"type": "vllm", "model_name": "truth", "base_url": run.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": run.tokenizer},
        "data": {"type": "synthetic", "multimodal": {}, **data},
        "load": {
            "type": "concurrent",
            "stages": [{"num_requests": level.requests, "concurrency_level": level.streams}],
        },
        "storage": {"local_storage": {"path": f"{run.folder}/r"}},
    }
    (run.folder / "settings.json").write_text(json.dumps(settings))
    return ["--config_file", f"{run.folder}/settings.json"]


def _read_inference_perf(run: Run) -> Reported:
    found = json.loads((run.folder / "r" / "summary_lifecycle_metrics.json").read_text())["successes"]["latency"]
    ttft, itl = found["time_to_first_token"], found["inter_token_latency"]
    return Reported(1000 * ttft["mean"], 1000 * ttft["p99"], 1000 * itl["mean"])


def tools(peers: Path | None) -> list[Tool]:
    """Return servebench and the other tools that are installed."""
    found = [Tool("servebench", _servebench, _read_servebench)]

    def add(
        name: str,
        program: str,
        words: Callable[[Run], list[str]],
        read: Callable[[Run], Reported],
        own_home: bool = False,
    ) -> None:
        if peers is not None and (peers / name / "bin" / program).exists():
            path = str(peers / name / "bin" / program)
            found.append(Tool(name, lambda run: [path, *words(run)], read, own_home))

    add("guidellm", "guidellm", _guidellm, _read_guidellm)
    add("aiperf", "aiperf", _aiperf, _read_aiperf)
    add("vllm", "vllm", _vllm, _read_vllm)
    add("vllm-compiled", "vllm-rs", _vllm, _read_vllm)
    add("sglang-compiled", "sglang-bench", _sglang, _read_vllm)
    add("genai-bench", "genai-bench", _genai_bench, _read_genai_bench)
    add("llama-benchy", "llama-benchy", _llama_benchy, _read_llama_benchy, own_home=True)
    add("inference-perf", "inference-perf", _inference_perf, _read_inference_perf)
    return found


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
        lines = [line.split() for line in truth_file.read_text().splitlines()]
        stamps = [[int(field) for field in fields[1:]] for fields in lines]
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


@functools.cache
def idle_cpu_s(tool: Tool, tokenizer: str) -> float:
    """Return the CPU time of a run of one request: the minimum of two, as the first also fills caches. 0 if it failed."""
    alone = [once(tool, Level(1, 1, 1000, 1000, 8), tokenizer) for _ in range(2)]
    return min((found["cpu_s"] or 0.0 for found in alone if isinstance(found, dict)), default=0.0)


def table(chosen: Sequence[Tool], level: Level, tokenizer: str) -> str:
    """Return the results of all tools at one level as Markdown."""
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
        cpu_us = 1e6 * (found["cpu_s"] - idle_s) / found["events"]
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
