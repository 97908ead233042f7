"""What a failed start is explained by, from a line of the engine's log."""

from __future__ import annotations

import pytest

from servebench.engine.adapters.vllm import VllmEngine
from servebench.engine.supervisor.logs import explain_failure


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("importlib.metadata.PackageNotFoundError: No package metadata was found for vllm", "the Python beside it"),
        ("OSError: /models/x does not appear to have a file named config.json.", "a Hugging Face model folder"),
        ("vllm: error: unrecognized arguments: --no-such-flag", "engine.extra_args"),
    ],
)
def test_a_failed_start_of_vllm_is_explained(tmp_path, line, advice):
    log = tmp_path / "engine.log"
    log.write_text(f"INFO starting\n{line}\n")
    assert advice in explain_failure("vllm died", log, VllmEngine.hints)[0]
