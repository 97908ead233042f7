"""What cannot work is said before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from servebench.contracts.settings import (
    EngineSettings,
    GpuSettings,
    LengthSettings,
    LoadSettings,
    ModelSettings,
    WorkloadSettings,
)
from servebench.engine.adapters.vllm import VllmEngine
from servebench.engine.launchers.emulated import EmulatedLauncher
from servebench.engine.launchers.process import ProcessLauncher
from servebench.engine.pool import launch_context
from servebench.run.fits import disk_problem, driver_problem, fit_faults, hub_problem, memory_note, torch_cuda
from servebench.util.gpus import Gpu
from support.servers import refusing_port
from support.settings import run_settings

LLAMA = ModelSettings(name="meta-llama/Llama-3.1-8B-Instruct", parameters_b=8.03, layers=32, kv_heads=8, head_dim=128)
RTX4090 = GpuSettings(name="rtx4090", count=1, memory_gb=24)
TORCH = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '2.9.0+cu130'
debug = False
cuda: Optional[str] = {cuda}
hip: Optional[str] = None
"""
"""`torch/version.py` of PyTorch 2.9."""


@pytest.fixture
def hub(serve, monkeypatch, tmp_path):
    """Start a hub that answers each request with a status and its code for the error."""

    def start(status, code):
        def script(sock, _):
            head = f'HTTP/1.1 {status} X\r\nX-Error-Code: {code}\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n'
            sock.sendall(head.encode())

        server = serve(script)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.port}")
        return server

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    hub_problem.cache_clear()
    yield start
    hub_problem.cache_clear()


@pytest.mark.parametrize(
    ("status", "code", "named"),
    [
        (200, "", None),
        (401, "RepoNotFound", "model.name=owner/m"),
        (403, "GatedRepo", "https://huggingface.co/owner/m"),
        (404, "RevisionNotFound", "model.revision=v2"),
        # the model is there
        (404, "EntryNotFound", None),
        (503, "", None),
    ],
)
def test_a_model_that_the_hub_does_not_give(hub, status, code, named):
    server = hub(status, code)
    found = [hub_problem("owner/m", "v2") for _ in range(2)]
    assert [named in (one or "") if named else one is None for one in found] == [True, True]
    assert len(server.requests) == 1
    assert server.requests[0].path == "/owner/m/resolve/v2/config.json"


def test_a_hub_that_is_not_reached_says_nothing(hub, monkeypatch):
    with refusing_port() as port:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        assert hub_problem("owner/m", None) is None
    # neither does one that does not take such a name
    hub_problem.cache_clear()
    assert hub_problem("a/b/c d", None) is None


def test_a_model_in_the_local_cache_is_not_asked_for(hub, tmp_path):
    server = hub(401, "RepoNotFound")
    folder = tmp_path / "hub" / "models--owner--m"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c0ffee")
    (folder / "snapshots" / "c0ffee").mkdir(parents=True)
    (folder / "snapshots" / "c0ffee" / "config.json").write_text("{}")
    assert hub_problem("owner/m", None) is None
    assert server.requests == []


def faults(settings, launcher=ProcessLauncher, here=True):
    context = launch_context(settings, Path("cache"), lambda _: 8000)
    return fit_faults(settings, VllmEngine(), context, launcher(), here=here)


@pytest.mark.parametrize(
    ("gpu", "engine", "fits"),
    [
        ({}, {}, True),
        ({"memory_gb": 12}, {}, False),
        ({"memory_gb": 12, "count": 2}, {}, True),
        ({"memory_gb": 12}, {"quantization": "awq"}, True),
        ({"memory_gb": 12}, {"extra_args": {"cpu-offload-gb": 8}}, True),
        ({}, {"max_model_len": 131_072}, False),
        ({}, {"max_model_len": 8192}, True),
        ({"memory_gb": None}, {}, True),
    ],
)
def test_weights_and_one_request_must_fit(gpu, engine, fits):
    settings = run_settings(model=LLAMA, gpu=replace(RTX4090, **gpu), engine=EngineSettings(name="vllm", **engine))
    assert (faults(settings, here=False) == []) == fits
    assert faults(settings, EmulatedLauncher) == []


def test_vllm_does_not_start_without_room_for_the_whole_context():
    long = replace(LLAMA, context_length=131_072)
    assert len(faults(run_settings(model=long, gpu=RTX4090), here=False)) == 1
    assert faults(run_settings(model=long, gpu=replace(RTX4090, count=2)), here=False) == []
    assert (
        faults(
            run_settings(model=long, gpu=RTX4090, engine=EngineSettings(name="vllm", max_model_len=8192)), here=False
        )
        == []
    )


@pytest.mark.parametrize(
    ("users", "tokens", "figures"),
    [
        # 131,072 bytes a token: 64 users with 2,048 tokens have 17.2 GB
        ((1, 64), (1024, 1024), ["24", "16.1", "17.2", "64 users", "29 users"]),
        ((1, 64), (1024, LengthSettings(kind="uniform", min=512, max=1536)), ["17.2"]),
        ((1, 16), (1024, 1024), None),
        ((1, 64), (1024, None), None),
    ],
)
def test_keys_and_values_of_all_users(users, tokens, figures):
    load = LoadSettings(name="l", concurrency=users)
    workload = WorkloadSettings(name="unique", input_tokens=tokens[0], output_tokens=tokens[1])
    note = memory_note(run_settings(model=LLAMA, gpu=RTX4090, load=load, workload=workload))
    assert note is None if figures is None else all(one in note for one in figures)


def test_a_download_must_fit_the_disk(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "not" / "yet"))
    big = replace(LLAMA, parameters_b=1e6)
    assert str(tmp_path / "not" / "yet") in disk_problem(big, run_settings(model=big))
    assert disk_problem(replace(LLAMA, parameters_b=1e-6), run_settings()) is None
    (tmp_path / "not" / "yet" / "models--meta-llama--Llama-3.1-8B-Instruct").mkdir(parents=True)
    assert disk_problem(big, run_settings(model=big)) is None


@pytest.fixture
def program(tmp_path):
    """A program of a virtual environment whose torch is built for this CUDA."""

    def make(cuda):
        python = tmp_path / "venv" / "bin" / "python3"
        package = tmp_path / "venv" / "lib" / "python3.12" / "site-packages" / "torch"
        for folder in (python.parent, package):
            folder.mkdir(parents=True, exist_ok=True)
        python.write_text("")
        python.chmod(0o755)
        (package / "version.py").write_text(TORCH.format(cuda=cuda))
        script = python.with_name("vllm")
        script.write_text(f"#!{python}\nimport sys\n")
        script.chmod(0o755)
        return script

    return make


@pytest.mark.parametrize(
    ("cuda", "driver", "works"),
    [
        ("'13.0'", "550.54.15", False),
        ("'13.0'", "580.126.09", True),
        ("'12.8'", "550.54.15", True),
        ("'12.8'", "470.256.02", False),
        ("None", "470.256.02", True),
        ("'14.1'", "580.126.09", True),
        ("'13.0'", None, True),
        ("'13.0'", "N/A", True),
    ],
)
def test_the_driver_must_be_new_enough_for_the_engines_torch(program, monkeypatch, cuda, driver, works):
    script = program(cuda)
    gpus = [Gpu(index=0, name="g", driver=driver)]
    assert [driver_problem(str(one), gpus) is None for one in (script, script.with_name("python3"))] == [works] * 2
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/cuda/compat")
    assert driver_problem(str(script), gpus) is None


def test_a_program_without_a_torch_of_its_own(tmp_path):
    assert torch_cuda("no-such-program") is None
    (tmp_path / "vllm").write_bytes(b"\x7fELF\xff\xfe")
    (tmp_path / "vllm").chmod(0o755)
    assert torch_cuda(str(tmp_path / "vllm")) is None
