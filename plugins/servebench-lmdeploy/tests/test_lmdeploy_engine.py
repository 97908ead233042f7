"""LMDeploy's adapter: the conformance suite, and every flag that it composes against those of the published parser."""

import json
from pathlib import Path

import pytest

from servebench.testing import EngineConformance
from servebench_lmdeploy.engine import FLAGS, LmdeployEngine

PUBLISHED = json.loads((Path(__file__).parent / "data" / "api_server_flags.json").read_text())


class TestLmdeploy(EngineConformance):
    """The lines are those of its sources (0.18)."""

    engine = LmdeployEngine
    program = "lmdeploy"
    own_defaults = {"prefix_caching": False}
    sample_log = (
        "2026-11-01 10:00:00,000 - lmdeploy - INFO - model_agent.py:1 - Building Model.",
        "2026-11-01 10:00:05,000 - lmdeploy - INFO - model_agent.py:1 - Building GraphRunner and warmup ops, please waiting.",
        "2026-11-01 10:00:06,000 - lmdeploy - INFO - model_agent.py:1 - Building CacheEngine with config",
        "2026-11-01 10:00:16,000 - lmdeploy - INFO - engine.py:1 - Engine warmup completed in 10.00 seconds.",
        "HINT:    Please open http://127.0.0.1:23333 in a browser for detailed api usage!!!",
    )
    failures = {
        "out_of_memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "model_missing": "OSError: org/none is not a local folder and is not a valid model identifier listed on the hub",
        "wrong_cuda": "RuntimeError: Found no NVIDIA driver on your system.",
        "unknown_flag": "lmdeploy: error: unrecognized arguments: --no-such-flag 1",
        "port_in_use": "[Errno 98] error while attempting to bind on address ('127.0.0.1', 23333): address already in use",
    }


def test_the_command(tmp_path):
    suite = TestLmdeploy()
    asked = {"backend": "pytorch", "max_num_seqs": 8, "prefix_caching": True, "gpu_memory_fraction": 0.5}
    argv, env = suite.composed(suite.context(tmp_path, env={"A": "1"}, extra_args={"eager-mode": True}, **asked))
    assert argv == (
        "lmdeploy", "serve", "api_server", "/models/model", "--model-name", "org/model",
        "--server-name", "127.0.0.1", "--server-port", "8123", "--backend", "pytorch",
        "--generation-config", "lmdeploy", "--log-level", "INFO",
        "--cache-max-entry-count", "0.5", "--max-batch-size", "8", "--enable-prefix-caching", "--eager-mode",
    )  # fmt: skip
    assert env == {"A": "1"}


def test_a_python_runs_it_as_a_module(tmp_path):
    suite = TestLmdeploy()
    argv, _ = suite.composed(suite.context(tmp_path, executable="/venv/bin/python", extra_args={"log-level": "ERROR"}))
    assert argv[:5] == ("/venv/bin/python", "-m", "lmdeploy", "serve", "api_server")
    assert argv.count("--log-level") == 1


@pytest.mark.parametrize("backend", ["turbomind", "pytorch"])
def test_every_flag_is_among_the_published_ones(tmp_path, backend):
    suite = TestLmdeploy()
    everything = dict.fromkeys(FLAGS.flags, 1) | {"dtype": "float16", "quantization": "awq", "prefix_caching": True}
    argv, _ = suite.composed(suite.context(tmp_path, backend=backend, **everything))
    flags = {word for word in argv if word.startswith("--")}
    assert len(flags) >= 13
    assert flags <= set(PUBLISHED["flags"])
