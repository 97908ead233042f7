"""Every command that we compose parses with the argument parser of the published package, to the values that we meant."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from servebench.analysis.tuning.candidates import override_words
from servebench.config import compose_jobs
from servebench.config.tune_space import load_space
from servebench.engine.pool import launch_context

PROBE = Path(__file__).with_name("parser_probe.py")
ROOT = Path(__file__).parents[2]

SHARED = [
    *("engine.tensor_parallel_size=2", "engine.max_model_len=4096", "engine.dtype=bfloat16"),
    *("engine.quantization=awq", "engine.gpu_memory_fraction=0.5", "engine.max_num_seqs=16"),
    *("engine.prefix_caching=true", "engine.prefix_caching=false", "engine.seed=7"),
]

CASES = {
    "vllm": {
        "flags": ROOT / "tests/engine/adapters/data/vllm_flags.json",
        "words": [
            *([word] for word in SHARED),
            ["model.path=/models/m", "model.revision=main"],
            ["engine.max_num_seqs=64", "+engine.extra_args.enforce-eager=true", "+engine.extra_args.max-num-batched-tokens=512"],
            ["+engine.extra_args.load-format=dummy", "+engine.extra_args.kv-cache-dtype=fp8"],
        ],
        "values": {
            "tensor_parallel_size": 2, "max_model_len": 4096, "dtype": "bfloat16", "quantization": "awq",
            "gpu_memory_utilization": 0.5, "max_num_seqs": 16, "seed": 7,
        },
    },
    "sglang": {
        "flags": ROOT / "tests/engine/adapters/data/sglang_flags.json",
        "words": [
            *([word] for word in SHARED),
            ["model.path=/models/m", "model.revision=main"],
            ["+engine.extra_args.attention-backend=torch_native", "+engine.extra_args.device=cpu"],
            ["+engine.extra_args.disable-cuda-graph=true", "+engine.extra_args.max-total-tokens=32768"],
        ],
        "values": {
            "tp_size": 2, "context_length": 4096, "dtype": "bfloat16", "quantization": "awq",
            "mem_fraction_static": 0.5, "max_running_requests": 16, "random_seed": 7,
        },
    },
    "lmdeploy": {
        "flags": ROOT / "plugins/servebench-lmdeploy/tests/data/api_server_flags.json",
        "words": [
            *([word] for word in SHARED if "seed" not in word),
            ["model.path=/models/m", "model.revision=main"],
            ["engine.backend=pytorch", "+engine.extra_args.eager-mode=true", "+engine.extra_args.quant-policy=8"],
            ["+engine.extra_args.log-level=ERROR"],
        ],
        "values": {
            "tp": 2, "session_len": 4096, "dtype": "bfloat16", "model_format": "awq",
            "cache_max_entry_count": 0.5, "max_batch_size": 16,
        },
    },
}  # fmt: skip


def ask(name: str, place: str, lines: list[list[str]]) -> dict:
    """What the package's parser makes of these command lines."""
    is_folder = Path(place).is_dir()
    words = [sys.executable, str(PROBE), name, place] if is_folder else [place, str(PROBE), name]
    done = subprocess.run(
        words,
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


VERBS = {"vllm": ["serve"], "sglang": ["serve"], "lmdeploy": ["serve", "api_server"]}
MODULES = {
    "vllm": ["-m", "vllm.entrypoints.openai.api_server"],
    "sglang": ["-m", "sglang.launch_server"],
    "lmdeploy": ["-m", "lmdeploy", "serve", "api_server"],
}


def after_the_verb(name: str, argv: tuple[str, ...]) -> list[str]:
    """What the parser sees: the words after the program, or the module that Python runs, and its verbs."""
    start = MODULES[name] if Path(argv[0]).name.startswith("python") else VERBS[name]
    assert list(argv[1 : 1 + len(start)]) == start
    return list(argv[1 + len(start) :])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CASES)
def test_every_command_parses(name, real, installed, tmp_path):
    """From words of our command line to values in the engine's own namespace, and never a refusal."""
    place, registry, case = real(name), installed(name), CASES[name]
    lines = []
    together = [word for [word] in case["words"][: len(case["values"])]]
    for words in [[], *case["words"], together, [*together, "engine.executable=/venv/bin/python"]]:
        (job,) = compose_jobs([f"engine={name}", *words], registry)
        command = registry.engine(name).command(launch_context(job.settings, tmp_path))
        lines.append(after_the_verb(name, command.argv))
    found = ask(name, place, [*lines, [*lines[0], "--no-such-flag"]])
    *results, wrong = found["results"]
    assert "unrecognized arguments: --no-such-flag" in wrong["error"]
    refused = [(line, result["error"]) for line, result in zip(lines, results, strict=True) if "error" in result]
    assert not refused
    values = {
        key: value
        for result in results[1:]
        for key, value in result["values"].items()
        if value != results[0]["values"][key]
    }
    expected = case["values"]
    assert {key: values.get(key) for key in expected} == expected
    listed = json.loads(Path(case["flags"]).read_text())
    if found["version"] == listed["version"]:
        assert found["flags"] == listed["flags"], f"{case['flags']} is not what the parser has"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", CASES)
def test_every_setting_of_the_tune_space_parses(name, real, installed, tmp_path):
    """Each value of each parameter that `servebench tune` varies, and each rule of thumb, is a command that the engine takes."""
    place, registry = real(name), installed(name)
    space = load_space(name, registry)
    tried = [{one.key: value} for one in space.parameters for value in one.values if value is not None]
    tried += [dict(rule.settings) for rule in space.rules]
    lines = []
    for settings in tried:
        (job,) = compose_jobs([f"engine={name}", *override_words(settings)], registry)
        command = registry.engine(name).command(launch_context(job.settings, tmp_path))
        lines.append(after_the_verb(name, command.argv))
    results = ask(name, place, lines)["results"]
    assert [(one, result["error"]) for one, result in zip(tried, results, strict=True) if "error" in result] == []
    assert len(tried) > 5
