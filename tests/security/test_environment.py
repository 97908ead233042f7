"""What of servebench's environment its children see: the variables that engines need, and no secret of another service."""

import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from servebench.cluster import orders
from servebench.cluster.leases import FOLDER_VARIABLE, lease_folder
from servebench.cluster.submitit_jobs import SubmititCluster
from servebench.contracts.cluster import SubmititSettings
from servebench.contracts.engine import Command
from servebench.engine.adapters.flags import command_output
from servebench.engine.launchers.docker import image_with_id
from servebench.engine.supervisor.started import GuardedProcess
from servebench.util.children import child_environment, python_environment
from servebench.util.errors import PreflightError
from servebench.util.redaction import redact_text
from support.commands import run_servebench
from support.orchestration import run_order
from support.waiting import wait_until

SECRETS = (
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"),
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "WANDB_API_KEY", "DATABASE_URL", "MY_INNOCENT_NAME", "SSH_AUTH_SOCK"),
    *("AZURE_STORAGE_CONNECTION_STRING", "KUBECONFIG", "BASH_ENV", "ENV", "OTEL_EXPORTER_OTLP_HEADERS", "VLLM_API_KEY"),
)  # fmt: skip
USUAL = (
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "HUGGINGFACE_HUB_CACHE", "NCCL_P2P_DISABLE"),
    *("VLLM_ATTENTION_BACKEND", "SGLANG_X", "TRTLLM_X", "TLLM_LOG_LEVEL", "TORCH_CUDA_ARCH_LIST", "PYTORCH_CUDA_ALLOC_CONF"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LLAMA_X", "GGML_X", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HSA_X"),
    *("https_proxy", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "LANG", "LC_ALL", "TMPDIR"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "RAY_ADDRESS", "SLURM_JOB_ID", "TRANSFORMERS_OFFLINE", "OLLAMA_MODELS", "XDG_CACHE_HOME"),
)  # fmt: skip


@pytest.fixture
def planted(monkeypatch):
    """An environment with a secret of each kind and with each usual variable; gives the secret values by name."""
    for name in (*USUAL, "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "" if name in ("LANG", "LC_ALL") else "/usual")
    values = {name: f"planted-{name.lower()}-value" for name in SECRETS}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_TOKEN", "planted-hub-token")
    monkeypatch.setenv("TMPDIR", "/tmp")
    return values


def _environment_of(command, tmp_path):
    log = tmp_path / "log"
    guarded = GuardedProcess(command, log, 5.0)
    wait_until(guarded.has_ended)
    return dict(line.split("=", 1) for line in log.read_text().splitlines() if "=" in line)


def test_an_engine_gets_the_usual_variables_and_no_secrets(planted, tmp_path):
    seen = _environment_of(Command(argv=("/usr/bin/env",), env={"OWN": "1"}), tmp_path)
    assert not set(SECRETS) & set(seen)
    assert set(USUAL) <= set(seen)
    assert (seen["HF_TOKEN"], seen["OWN"], seen["PATH"]) == ("planted-hub-token", "1", os.environ["PATH"])


def test_the_guard_itself_has_no_secrets(planted, tmp_path):
    guarded = GuardedProcess(Command(argv=("/bin/sleep", "60")), tmp_path / "log", 5.0)
    try:
        for pid in (guarded.process.pid, guarded.pid):
            text = Path(f"/proc/{pid}/environ").read_text()
            assert not [name for name, value in planted.items() if value in text]
    finally:
        guarded.stop()


def test_what_is_named_is_added(planted, tmp_path):
    named = Command(argv=("/usr/bin/env",), env={"OPENAI_API_KEY": "own"}, pass_env=("GITHUB_TOKEN", "AWS_", "NOT_SET"))
    seen = _environment_of(named, tmp_path)
    # a family adds no secrets; a full name does
    assert set(SECRETS) & set(seen) == {"GITHUB_TOKEN", "OPENAI_API_KEY"}
    assert seen["OPENAI_API_KEY"] == "own"  # pragma: allowlist secret
    assert "NOT_SET" not in seen


def test_tools_and_workers_get_no_secrets_and_no_hub_token(planted, tmp_path, monkeypatch):
    runtime = tmp_path / "runtime"
    runtime.write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\n")
    runtime.chmod(0o755)
    monkeypatch.setenv("DOCKER_HOST", "unix:///x")
    image_with_id(str(runtime), "image")
    seen = (tmp_path / "seen").read_text()
    assert "DOCKER_HOST=unix:///x" in seen
    allowed = {"SSH_AUTH_SOCK"}  # docker reaches a daemon over SSH with it
    texts = (seen, command_output(["env"]), str(python_environment()), str(child_environment()))
    assert {name for text in texts for name, value in planted.items() if value in text} <= allowed
    assert not [text for text in texts if "planted-hub-token" in text]


def test_a_python_engine_does_not_import_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "engine_module.py").write_text("print('ran=yes')")
    monkeypatch.chdir(tmp_path)
    for argv in ((sys.executable, "-m", "engine_module"), (sys.executable, "-c", "import engine_module")):
        assert "ran" not in _environment_of(Command(argv=argv), tmp_path)
    script = tmp_path / "server.py"
    script.write_text("import engine_module")
    # a script may import what lies next to it
    monkeypatch.setenv("PYTHONSAFEPATH", "servebench")
    assert _environment_of(Command(argv=(sys.executable, str(script))), tmp_path)["ran"] == "yes"


def _seen_in_job(order):
    return {name: os.environ.get(name) for name in (*SECRETS, "HF_TOKEN", "NAMED", "OF_A_SITE", "PYTHONSAFEPATH")}


@pytest.mark.slow
def test_a_job_of_a_scheduler_inherits_no_secrets_and_ignores_results_that_lie_there(planted, tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("OF_A_SITE", "kept")
    monkeypatch.chdir(tmp_path)
    ran = tmp_path / "ran"
    for name in ("submitit", "cloudpickle", "pickle"):
        (tmp_path / f"{name}.py").write_text(f"open({str(ran)!r}, 'w')")
    cluster = SubmititCluster(SubmititSettings(name="submitit_local"), tmp_path / "jobs", _seen_in_job)
    (job,) = cluster.submit([run_order(environ={"NAMED": "1"})])
    end = wait_until(lambda: cluster.poll(job))
    assert end.lost is None
    plain = {"DATABASE_URL", "MY_INNOCENT_NAME", "SSH_AUTH_SOCK", "KUBECONFIG"}
    plain |= {"BASH_ENV", "ENV", "OTEL_EXPORTER_OTLP_HEADERS"}
    assert {name for name in SECRETS if end.reply[name]} <= plain
    assert (end.reply["NAMED"], end.reply["OF_A_SITE"], end.reply["HF_TOKEN"]) == ("1", "kept", "planted-hub-token")
    assert end.reply["PYTHONSAFEPATH"]
    assert "NAMED" not in os.environ
    assert not ran.exists()
    # no result is looked for where someone else could have put one
    assert not [path for path in (tmp_path / "jobs").iterdir() if path.is_file()]


def test_a_secret_value_is_redacted_under_any_name(planted):
    value = planted["AWS_SECRET_ACCESS_KEY"]
    for line in (f"REGION={value}", f"using {value} now", f'{{"x": "{value}"}}', f"--region {value}"):
        assert value not in redact_text(line)


@pytest.mark.slow
def test_secrets_of_the_environment_reach_neither_log_nor_manifest(tmp_path, planted):
    """An engine that prints its environment, and a secret that the user gives it under an innocent name."""
    engine = tmp_path / "vllm"
    engine.write_text("#!/bin/sh\nenv\nexit 3\n")
    engine.chmod(0o755)
    words = ["engine=vllm", f"engine.executable={engine}", "gpu=none", "tracking=none", "load.requests=4"]
    words += ["++engine.env.REGION='${oc.env:AWS_SECRET_ACCESS_KEY}'", "launch.pass_env=[GITHUB_TOKEN]", "model.name=m"]
    done = run_servebench(tmp_path, *words)
    assert done.returncode not in (0, 2), done.stderr
    texts = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} | {
        "said": (done.stdout + done.stderr).encode()
    }
    assert any(b"REGION=" in text for text in texts.values())
    for name, value in planted.items():
        assert not [path for path, text in texts.items() if value.encode() in text], name


def test_the_lease_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = lease_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert lease_folder() == folder
    folder.chmod(0o777)
    with pytest.raises(PreflightError, match=FOLDER_VARIABLE):
        lease_folder()
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    with pytest.raises(PreflightError, match=FOLDER_VARIABLE):
        lease_folder()
    folder.unlink()
    if os.getuid() == 0:
        folder.mkdir(mode=0o700)
        os.chown(folder, 1, 1)
        with pytest.raises(PreflightError, match="another user"):
            lease_folder()
    monkeypatch.setenv(FOLDER_VARIABLE, str(elsewhere))
    assert lease_folder() == elsewhere


def test_an_order_carries_the_variables_that_the_config_names():
    part = SimpleNamespace(api_key_env="JUDGE_KEY", pass_env=("PASSED", "NOT_SET"), env={})
    settings = SimpleNamespace(quality=SimpleNamespace(judge=part), launch=part, engine=part)
    environ = {"JUDGE_KEY": "a", "PASSED": "b", "OTHER": "c"}
    assert orders.named_variables(SimpleNamespace(settings=settings), environ) == {"JUDGE_KEY": "a", "PASSED": "b"}
