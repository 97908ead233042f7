"""What workloads promise, seen by real engines: prompts as long as asked, caches that find what is shared and no more.

Prompts are counted by the server's own usage, hits by its usage and by its metrics.
"""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from servebench.engine.supervisor.ports import free_port
from support.commands import run_servebench
from support.waiting import wait_until

from .test_engines import HAS_PREFIX_CACHE, engine

__all__ = ["engine"]

BLOCK_TOKENS = {"llamacpp": 1, "vllm": 128, "sglang": 1}
"""What each engine's prefix cache keeps whole: vLLM on a CPU has blocks of 128."""

SINGLE = ("unique", "rag_prefix", "sharegpt", "structured_json", "summarization", "long_context", "trace")
SHORT = {
    "long_context": ["workload.input_tokens=600"],
    "summarization": ["workload.input_tokens=600"],
    "trace": ["workload.length_scale=0.25", "workload.max_input_tokens=500"],
}
LENGTH = ["workload.output_tokens=16"]


def servebench(words: Sequence[str], tmp_path: Path) -> dict[str, tuple[pd.Series, pd.DataFrame]]:
    """The point and the measured requests of each run of a study, by the run's folder."""
    out = tmp_path / f"out-{time.monotonic_ns()}"
    load = ("load.concurrency=[2]", "load.warmup_requests=0", "load.self_check=never")
    run_servebench(tmp_path, *words, *load, "tracking=none", f"study.dir={out}", code=0, limit_s=1500)
    found = {}
    for path in sorted(out.glob("*/*/requests.parquet")):
        requests = pd.read_parquet(path)
        point = pd.read_parquet(path.with_name("points.parquet")).iloc[-1]
        found[path.parent.name] = point, requests[~requests.warmup].sort_values("sent_ns")
    return found


def launched(engine: tuple[str, Path], real) -> list[str]:
    name, folder = engine
    model = real("GGUF" if name == "llamacpp" else "MODEL")
    words = ["--config-dir", str(folder), f"engine=real_{name}", f"model.path={model}"]
    return [*words, "engine.ready_timeout_s=300", "load.timeout_s=300"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_prompts_have_the_length_asked_for(engine, real, tmp_path, api):
    """A completion to the token; in a chat the template adds the same to each."""
    if engine[0] == "transformers":
        pytest.skip("its server counts prompts only where it is asked for chat")
    start = launched(engine, real)
    for name in SINGLE:
        length = [] if name == "trace" else LENGTH
        words = [*start, f"workload={name}", f"workload.api={api}", "load.requests=4", *length, *SHORT.get(name, [])]
        ((_, requests),) = servebench(words, tmp_path).values()
        added = requests.prompt_tokens - requests.planned_prompt_tokens
        assert set(requests.outcome) == {"ok"}, name
        assert added.notna().all(), name
        assert added.nunique() == 1, (name, list(added))
        assert (added == 0).all() == (api == "completions"), name


@pytest.mark.timeout(1800)
def test_a_prefix_cache_finds_what_is_shared_and_no_more(engine, real, tmp_path):
    """Nothing of unique prompts; of documents what whole blocks allow; usage and metrics say the same."""
    name = engine[0]
    if name not in HAS_PREFIX_CACHE:
        pytest.skip("it has no prefix cache")
    rag = ["workload.documents=2", "workload.output_tokens=8", "load.requests=12", "workload.share=0,0.5,0.9"]
    start = launched(engine, real)
    none, half, most = servebench(["-m", *start, "workload=rag_prefix", *rag], tmp_path).values()
    ((unique, _),) = servebench([*start, "workload=unique", *LENGTH, "load.requests=8"], tmp_path).values()
    for share, (point, requests) in {0.0: none, 0.5: half, 0.9: most}.items():
        used = requests.cached_tokens.sum() / requests.prompt_tokens.sum()
        assert point.server_prefix_cache_hit_rate == pytest.approx(used, abs=0.01)
        assert point.prefix_cache_hit_rate <= point.prefix_cache_hit_rate_ideal + 0.01
        block = BLOCK_TOKENS[name]
        at_best = round(share * 512) // block * block / 512
        # each document is new once, or again to another slot while one is at work on it
        assert 6 / 12 * at_best - 0.02 <= used <= 10 / 12 * at_best + 0.02
    assert unique.prefix_cache_hit_rate <= 0.01
    assert "cache_contaminated" not in unique.doubts


@pytest.mark.timeout(1800)
def test_answers_become_history(engine, real, tmp_path):
    """Each turn has the one before it, its answer and 48 new words or so; a prefix cache has more than the prompts."""
    name = engine[0]
    words = ["workload=multi_turn", "workload.turns=3", "workload.output_tokens=16", "load.requests=9"]
    chat = [*launched(engine, real), "workload.api=chat", *words]
    ((point, requests),) = servebench(chat, tmp_path).values()
    assert set(requests.outcome) == {"ok"}
    assert point.requests_ok == 9
    for _, session in requests.groupby("session_id"):
        growth = session.prompt_tokens.diff().dropna()
        # the answer may be cut into tokens otherwise when it is read again; the template adds a few for each message
        assert growth.between(48 + 16 - 8, 48 + 16 + 24).all(), (name, list(growth))
        assert (session.sent_ns.iloc[1:].to_numpy() >= session.last_event_ns.iloc[:-1].to_numpy()).all()


def is_healthy(port):
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
        return json.load(answer)


@pytest.mark.timeout(600)
def test_prompts_that_a_server_has_seen_are_told(real, installed, tmp_path):
    """The same seed again, to a server that nobody emptied: cache_contaminated; another seed: no doubt."""
    installed("llamacpp")
    model, port = real("GGUF"), free_port("127.0.0.1")
    server = subprocess.Popen(
        [
            *(
                sys.executable,
                "-P",
                "-m",
                "servebench_llamacpp.server",
                "--model",
                model,
                "--alias",
                "m",
                "--threads",
                "1",
            ),
            *("--port", str(port), "--metrics", "--parallel", "8", "--ctx-size", "4096"),
        ]
    )
    try:
        wait_until(lambda: is_healthy(port), process=server)
        words = ["engine=llamacpp", "launch=attach", f"launch.base_url=http://127.0.0.1:{port}/v1", "model.name=m"]
        words += ["workload=unique", "workload.input_tokens=64", "workload.output_tokens=4", "load.requests=6"]
        words += ["workload.cache=as_is"]
        told = []
        for seed in (1, 1, 2):
            ((point, _),) = servebench([*words, f"workload.seed={seed}"], tmp_path).values()
            told.append("cache_contaminated" in point.doubts)
        assert told == [False, True, False]
    finally:
        server.terminate()
        server.wait(30)
