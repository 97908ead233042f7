"""What commands import: nothing that they do not use, because imports are most of what a short command costs."""

import json
import subprocess
import sys

import pytest

ANALYSIS = {"httpx", "mlflow", "numpy", "pandas", "psutil", "pyarrow", "rich", "scipy", "jsonschema", "jinja2"}
SETTINGS = {"hydra", "omegaconf", "pydantic", "yaml"}
PROGRAM = """
import contextlib, io, json, sys
from servebench.cli.main import main
sys.argv[1:] = json.loads(sys.argv[1])
with contextlib.redirect_stdout(io.StringIO()):
    code = main()
print(json.dumps([code, sorted(sys.modules)]))
"""


def imported(*words):
    """Return the modules that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(words)], capture_output=True, text=True, check=True, timeout=300
    )
    code, names = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    return set(names)


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("help",)], ids=" ".join)
def test_help_imports_neither_settings_nor_analysis(words):
    names = imported(*words)
    assert not names & (ANALYSIS | SETTINGS)
    assert len(names) < 400


@pytest.mark.parametrize("more", [(), ("engine=vllm", "launch=emulated"), ("workload=mix",)], ids=" ".join)
def test_the_config_is_shown_without_what_runs_and_judges(more):
    names = imported("--cfg", "job", *more)
    assert not names & ANALYSIS
    assert not any(name.startswith(("servebench.run", "servebench.analysis", "servebench.report")) for name in names)
    assert "servebench.engine.adapters.trtllm" not in names
    assert len(names) < 900


def test_a_simulated_run_imports_no_client_and_no_tracker(tmp_path):
    words = (
        "launch=simulated engine=vllm workload=short load=quick load.concurrency=[2] load.until=null load.requests=300"
    )
    names = imported(*words.split(), "tracking=none", "quality=none", f"study.dir={tmp_path}")
    assert "numpy" in names
    assert not names & {"httpx", "mlflow", "jsonschema", "filelock", "jinja2", "huggingface_hub.file_download"}
    assert "servebench.analysis.tuning.answer" not in names
