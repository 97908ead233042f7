"""A run whose engine is built first: the build is not part of the cold start, and the next study reuses it."""

import json

import pytest

from servebench.engine.supervisor.ports import free_port
from servebench.testing import ServerBehavior, write_stand_in
from support.commands import run_servebench

STEP = '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = --output_dir ] && out="$2"; shift; done\nmkdir -p "$out"\n'


@pytest.mark.slow
def test_a_build_is_reported_apart_and_reused(tmp_path):
    """In the manifest, with its seconds; the second study says that it only found it."""
    model = tmp_path / "llama"
    model.mkdir()
    (model / "config.json").write_text("{}")
    for name, made in (("convert", "rank0.safetensors"), ("trtllm-build", "rank0.engine")):
        path = tmp_path / name
        path.write_text(f'{STEP}touch "$out/{made}"\n')
        path.chmod(0o755)
    prepared = []
    for study in ("one", "two"):
        port = free_port("127.0.0.1")
        exact = {"ignore_eos": True}
        manners = ServerBehavior(models=("llama",), exact_output=exact, gap_s=0.002)
        server = write_stand_in(tmp_path / "trtllm-serve", manners, host="127.0.0.1", port=port)
        words = [
            "engine=trtllm", "engine.backend=tensorrt", f"engine.port={port}", f"engine.executable={server}",
            f"engine.convert_script={tmp_path}/convert", f"engine.builder={tmp_path}/trtllm-build", "model.name=org/llama",
            f"model.path={model}", "load.concurrency=[2]", "load.requests=10", "workload=unique", "workload.input_tokens=8",
            "workload.output_tokens=8", "tracking=none", "load.self_check=never", f"study.name={study}",
        ]  # fmt: skip
        done = run_servebench(tmp_path, *words, env={"SERVEBENCH_CACHE": str(tmp_path / "cache")})
        assert done.returncode == 0, done.stderr
        (manifest,) = (tmp_path / "outputs" / study).glob("*/manifest.json")
        told = json.loads(manifest.read_text())
        prepared += told["cold_start"]["prepared"]
    assert [(one["name"], one["reused"]) for one in prepared] == [("engine_build", False), ("engine_build", True)]
    assert prepared[0]["seconds"] == prepared[1]["seconds"] > 0
