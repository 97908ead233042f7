"""Real engines through the public command: life, token counts, prefix hits, structured output, nothing left running.

The settings are those by which each engine runs on a CPU with little memory; see tests/real/conftest.py for what must be there.
"""

import json
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from support.commands import run_servebench
from support.real_engines import ON_A_CPU, settings_on_a_cpu

LEVELS = "[1,4]"
HAS_PREFIX_CACHE = ("llamacpp", "vllm", "sglang")
HAS_STRUCTURED_OUTPUT = ("llamacpp", "vllm", "sglang")


@pytest.fixture(params=["llamacpp", *ON_A_CPU])
def engine(request, real, installed, tmp_path) -> tuple[str, Path]:
    """An engine's name, and a config folder in which `engine=real_NAME` is that engine as it runs here."""
    name = request.param
    installed(name)
    keys = {} if name == "llamacpp" else settings_on_a_cpu(name, real(name.upper()))
    folder = tmp_path / "my" / "engine"
    folder.mkdir(parents=True)
    text = yaml.safe_dump({"defaults": [name, "_self_"], **keys})
    (folder / f"real_{name}.yaml").write_text(text)
    return name, folder.parent


def run(engine: tuple[str, Path], model: str, tmp_path: Path, *words: str) -> tuple[pd.DataFrame, pd.DataFrame, dict]:
    name, folder = engine
    before = {process.pid for process in psutil.process_iter()}
    run_servebench(
        tmp_path,
        *("--config-dir", str(folder), f"engine=real_{name}", f"model.path={model}", f"load.concurrency={LEVELS}"),
        *("load.requests=12", "tracking=none", f"study.dir={tmp_path / 'out'}", "engine.ready_timeout_s=300"),
        *("load.timeout_s=300", *words),
        code=0,
        limit_s=900,
    )
    left = [
        p
        for p in psutil.process_iter(["cmdline"])
        if p.pid not in before and model in " ".join(p.info["cmdline"] or ())
    ]
    assert not left
    (manifest,) = (tmp_path / "out").glob("*/*/manifest.json")
    assert (manifest.parent / "engine.log").stat().st_size
    return (
        pd.read_parquet(manifest.with_name("points.parquet")),
        pd.read_parquet(manifest.with_name("requests.parquet")),
        json.loads(manifest.read_text()),
    )


def test_life_counts_and_prefix_hits(engine, real, tmp_path):
    words = ("workload=rag_prefix", "workload.input_tokens=256", "workload.share=0.9", "workload.documents=2")
    points, requests, manifest = run(engine, real("MODEL"), tmp_path, *words, "workload.output_tokens=16")
    name = engine[0]
    assert list(points.requests_failed) == [0, 0]
    measured = requests[~requests.warmup]
    assert set(measured.counted_by) == {"usage"}
    assert (measured.output_tokens <= 16).all()
    if name != "transformers":
        # it cannot be asked for an exact length
        assert (measured.output_tokens == 16).all()
    assert (measured.event_ns.map(len) >= 1).all()
    assert manifest["engine_version"]
    assert manifest["stop"]["leftover"] == []
    assert [phase["name"] for phase in manifest["cold_start"]["phases"]][-1] == "first_token"
    if name in HAS_PREFIX_CACHE:
        assert (points.prefix_cache_hit_rate > 0.3).all()
        assert points.server_generation_tokens.notna().all()
        assert manifest["resolved_settings"]


def test_structured_output_validates_where_it_is_enforced(engine, real, tmp_path):
    if engine[0] not in HAS_STRUCTURED_OUTPUT:
        pytest.skip("it has no structured output")
    words = ("workload=structured_json", "load.concurrency=[2]", "workload.output_tokens=200")
    points, requests, _ = run(engine, real("MODEL"), tmp_path, *words)
    assert list(points.requests_failed) == [0]
    whole = (requests[~requests.warmup].finish_reason == "stop").mean()
    # an answer that is cut at its length cannot validate
    assert points.json_compliance[0] >= 0.9 * whole
    assert whole > 0.3
