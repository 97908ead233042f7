"""Triton's adapter: the conformance suite, and the model repository that the command writes."""

import json
import subprocess
from pathlib import Path

import pytest

from servebench.plugin import ModelSettings
from servebench.testing import EngineConformance
from servebench_triton.engine import TritonEngine


class TestTriton(EngineConformance):
    """The lines are those of its sources and of vLLM's."""

    engine = TritonEngine
    program = "python3"
    known_fields = (
        "model", "messages", "prompt", "max_tokens", "temperature", "stream", "stream_options", "seed", "ignore_eos",
        "min_tokens", "response_format",
    )  # fmt: skip
    sample_log = (
        "INFO 11-01 10:00:00 [default_loader.py:1] Loading weights took 3.20 seconds",
        "INFO 11-01 10:00:20 [gpu_model_runner.py:1] Graph capturing finished in 11 secs, took 0.60 GiB",
        "INFO 11-01 10:00:21 [core.py:1] init engine (profile, create kv cache, warmup model) took 20.1 seconds",
        "| org--model | 1       | READY  |",
        "Found model: name='org--model', backend='vllm'",
        "INFO:     Application startup complete.",
    )
    failures = {
        "out_of_memory": "ValueError: No available memory for the cache blocks.",
        "model_missing": "OSError: org/none is not a local folder and is not a valid model identifier",
        "unknown_flag": "TypeError: AsyncEngineArgs.__init__() got an unexpected keyword argument 'no_such'",
        "wrong_cuda": "RuntimeError: Found no NVIDIA driver on your system.",
        "other": "ModuleNotFoundError: No module named 'tritonserver'",
        "port_in_use": "[Errno 98] error while attempting to bind on address ('127.0.0.1', 9000): address already in use",
    }

    def stand_in_settings(self, folder, stand_in):
        frontend = folder / "main.py"
        frontend.touch()
        return {"executable": str(stand_in), "frontend": str(frontend)}


SUITE = TestTriton()


def test_the_command_writes_the_repository_and_becomes_the_server(tmp_path):
    """One model in it, with vLLM's arguments from the shared settings; a second model's is another."""
    probe = tmp_path / "python3"
    probe.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    probe.chmod(0o755)
    context = SUITE.context(
        tmp_path / "a b", executable=str(probe), gpu_memory_fraction=0.5, prefix_caching=True, max_model_len=4096,
        extra_args={"enforce_eager": True},
    )  # fmt: skip
    command = TritonEngine().command(context)
    done = subprocess.run(command.argv, capture_output=True, text=True, check=True, timeout=300)
    words = done.stdout.splitlines()
    repository = Path(words[words.index("--model-repository") + 1])
    assert [path.name for path in repository.iterdir()] == ["org--model"]
    assert json.loads((repository / "org--model" / "1" / "model.json").read_text()) == {
        "model": "/models/model",
        "disable_log_stats": False,
        "max_model_len": 4096,
        "gpu_memory_utilization": 0.5,
        "enable_prefix_caching": True,
        "enforce_eager": True,
    }
    assert (repository / "org--model" / "config.pbtxt").read_text().startswith('backend: "vllm"\n')
    assert words[words.index("--tokenizer") + 1] == "/models/model"
    other = TritonEngine().command(SUITE.context(tmp_path / "a b", model=ModelSettings(name="b"))).argv
    assert str(repository) not in other


def test_a_built_engine_is_served_from_a_repository_of_ones_own(tmp_path):
    """Its settings are in its files: the shared ones are refused, flags go to the frontend."""
    (tmp_path / "ensemble").mkdir()
    settings = {"backend": "tensorrtllm", "model_repository": str(tmp_path)}
    model = ModelSettings(name="ensemble", path="/models/llama")
    context = SUITE.context(tmp_path, model=model, extra_args={"uvicorn-log-level": "debug"}, **settings)
    argv = TritonEngine().command(context).argv
    assert argv[:4] == (
        "python3", "/opt/tritonserver/python/openai/openai_frontend/main.py", "--model-repository", str(tmp_path)
    )  # fmt: skip
    assert argv[-2:] == ("--uvicorn-log-level", "debug")
    assert TritonEngine().served_model(model) == "ensemble"
    problems = TritonEngine().check(SUITE.context(tmp_path, model=model, max_num_seqs=8, **settings))
    assert problems[0].startswith("engine.max_num_seqs=8: ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backend": "tensorrtllm"}, "set engine.model_repository="),
        (
            {"backend": "tensorrtllm", "model_repository": "/no/such"},
            "no model org--model in engine.model_repository=/no/such",
        ),
        ({"model_repository": "/some"}, "engine.model_repository=/some"),
        ({"frontend": "/no/main.py"}, "/no/main.py (engine.frontend)"),
    ],
)
def test_impossible_settings(settings, words, tmp_path):
    assert words in "\n".join(TritonEngine().check(SUITE.context(tmp_path, **settings)))
