"""The command and the dialect of `transformers serve`, against what 5.19 was seen to take."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from servebench.plugin import ModelSettings
from servebench.testing import EngineConformance
from servebench_transformers.engine import TransformersEngine


class TestConformance(EngineConformance):
    """The lines are those of a real start of 5.19."""

    engine = TransformersEngine
    program = "transformers"
    model = ModelSettings(name="smol", path="/models/smol")
    known_fields = (
        "model", "messages", "prompt", "max_tokens", "temperature", "stream", "stream_options", "seed",
        "generation_config",
    )  # fmt: skip
    sample_log = ("Loading weights: 100%|##########| 272/272 [00:00<00:00]", "INFO:     Application startup complete.")
    failures = {
        "out_of_memory": "torch.OutOfMemoryError: CUDA out of memory.",
        "model_missing": "OSError: none is not a local folder and is not a valid model identifier listed on the hub",
        "unknown_flag": "Error: No such option: --no-such-flag",
        "other": "ImportError: Missing dependencies for the serving CLI",
        "port_in_use": "[Errno 98] error while attempting to bind on address: address already in use",
    }


SUITE = TestConformance()
CACHE = Path("cache")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["--continuous-batching"]),
        ({"continuous_batching": False}, []),
        ({"device": "cpu", "dtype": "bfloat16"}, ["--device", "cpu", "--continuous-batching", "--dtype", "bfloat16"]),
        ({"extra_args": {"cb-num-blocks": 512}}, ["--continuous-batching", "--cb-num-blocks", "512"]),
    ],
)
def test_the_command(settings, expected):
    argv = TransformersEngine().command(SUITE.context(CACHE, **settings)).argv
    assert argv[:7] == ("transformers", "serve", "/models/smol", "--host", "127.0.0.1", "--port", "8123")
    assert list(argv[7:]) == expected


def test_the_version_is_that_of_the_interpreter_beside_the_program(tmp_path, monkeypatch):
    program, python = tmp_path / "transformers", tmp_path / "python"
    for path, text in ((program, "#!/bin/sh\n"), (python, "#!/bin/sh\necho 5.19.0\n")):
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    context = SimpleNamespace(engine=SimpleNamespace(executable=None))
    assert TransformersEngine().version(context) == "5.19.0"
    python.unlink()
    assert TransformersEngine().version(context) is None
