"""Containers: the exact `docker run` command, start and stop. `docker` is a script that runs the command on this machine;
the same was checked with podman 4.3."""

import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from servebench.contracts.settings import GpuSettings, ModelSettings
from servebench.engine.adapters.sglang import SglangEngine
from servebench.engine.adapters.vllm import VllmEngine
from servebench.engine.launchers import docker as docker_module
from servebench.engine.launchers.docker import (
    DockerLauncher,
    DockerSettings,
    container_command,
    gpu_arguments,
    remote_host,
)
from servebench.util.errors import EngineError
from support.waiting import wait_until

DOCKER = """#!{python} -S
import os, subprocess, sys, time
words = sys.argv[1:]
with open({calls!r}, "a") as file:
    file.write(" ".join(words) + "\\n")
if words[0] == "info":
    sys.exit({info})
if words[:2] == ["image", "inspect"]:
    while words[2] == "hangs":
        time.sleep(1)
    if not os.path.exists({image!r}):
        sys.exit(1)
    print("sha256:abc")
elif words[0] == "pull":
    if words[1] == "no/such":
        sys.exit("Error response from daemon: pull access denied for no/such")
    open({image!r}, "w").close()
elif words[0] == "inspect":
    print("0")
elif words[0] == "run":
    inner = words[words.index("some/image") + 1:]
    os.execv(inner[0], inner)
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Return a function that puts a `docker` on PATH and returns the file with its calls."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)

    def install(info=0):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = folder / "docker"
        calls = tmp_path / "calls"
        image = str(tmp_path / "image")
        program.write_text(DOCKER.format(python=sys.executable, calls=str(calls), info=info, image=image))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return calls

    return install


@pytest.mark.parametrize(
    ("value", "host"),
    [
        (None, None),
        ("", None),
        ("unix:///run/docker.sock", None),
        ("tcp://127.0.0.1:2375", None),
        ("tcp://gpu-box:2375", "gpu-box"),
        ("ssh://me@10.0.0.7", "10.0.0.7"),
    ],
)
def test_docker_host_names_another_machine(value, host):
    assert remote_host(value) == host


@pytest.mark.parametrize(
    ("runtime", "asked", "count", "words"),
    [
        ("docker", None, 0, ["--gpus", "all"]),
        ("docker", None, 2, ["--gpus", "2"]),
        ("docker", "device=0,1", 2, ["--gpus", '"device=0,1"']),
        ("docker", "none", 2, []),
        ("podman", None, 0, ["--device", "nvidia.com/gpu=all"]),
        ("podman", None, 2, ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"]),
        ("podman", "device=3", 1, ["--device", "nvidia.com/gpu=3"]),
    ],
)
def test_gpu_arguments(context_of, runtime, asked, count, words):
    context = replace(context_of(), gpu=GpuSettings(name="x", count=count))
    assert gpu_arguments(VllmEngine(), context, DockerSettings(name="docker", runtime=runtime, gpus=asked)) == words


def test_an_engine_without_gpu_gets_none(context_of, fake):
    assert gpu_arguments(fake(), context_of(), DockerSettings(name="docker")) == []


def test_the_command_of_vllm(context_of, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    context = replace(context_of(8123, env={"VLLM_X": "1"}), model=ModelSettings(name="m", path=str(tmp_path)))
    command = container_command(VllmEngine(), context, DockerSettings(name="docker", args=("--cpus", "2")), "c1")
    line = " ".join(command.argv)
    assert line.startswith("docker run --rm --init --name c1 --gpus all --ipc=host --publish 127.0.0.1:8123:8123 ")
    assert f" --volume {tmp_path}:/model/{tmp_path.name}:ro " in line
    assert " --volume /home/me/.cache/vllm:/root/.cache/vllm " in line
    assert " --env VLLM_X --env HF_TOKEN --env HF_ENDPOINT --cpus 2 vllm/vllm-openai:latest " in line
    # the image's entrypoint is `vllm serve`
    assert f" vllm/vllm-openai:latest /model/{tmp_path.name} --served-model-name m --host 0.0.0.0 --port 8123 " in line
    assert command.env == {"VLLM_X": "1"}


def test_the_command_of_sglang_on_the_host_network(context_of):
    settings = DockerSettings(name="docker", network="host", shm_size="32g", mount_caches=False)
    command = container_command(SglangEngine(), context_of(8123), settings, "c1")
    line = " ".join(command.argv)
    assert " --shm-size 32g --network host --env HF_TOKEN" in line
    assert " lmsysorg/sglang:latest sglang serve --model-path m " in line
    assert " --host 127.0.0.1 --port 8123 " in line


def test_a_remote_daemon_publishes_everywhere(context_of, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@10.0.0.7")
    command = container_command(VllmEngine(), context_of(8123), DockerSettings(name="docker"), "c1")
    assert "0.0.0.0:8123:8123" in command.argv


def check(engine, context, **settings):
    return DockerLauncher().check(engine, context, DockerSettings(name="docker", **settings))


def test_what_makes_a_container_impossible(context_of, fake, docker, monkeypatch, tmp_path):
    docker(info=1)
    problems = check(fake(), replace(context_of(), model=ModelSettings(name="m", path="/not/here")))
    assert len(problems) == 3
    for part in ("launch.image=", "launch.runtime=docker", "model.path=/not/here"):
        assert [problem for problem in problems if part in problem]
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = check(VllmEngine(), context_of())
    assert problem.startswith("launch.runtime=docker: ")


@pytest.fixture
def start(log, context_of, fake, started):
    def go(*options, image="some/image", pull="missing", **engine):
        launcher = DockerLauncher()
        settings = DockerSettings(name="docker", image=image, network="host", pull=pull)
        one = launcher.launch(fake(*options), context_of(**engine), settings, log_path=log, say=lambda _: None)
        started.append(one)
        return one

    return go


def test_a_container_runs_and_is_removed(docker, start):
    calls = docker()
    running = start("--log", "loaded 3 weights")
    assert "first_token" in [phase.name for phase in running.phases]
    assert running.image == "some/image sha256:abc"
    assert running.died() is None
    report = running.stop()
    assert (report.stopped, report.leftover) == (True, ())
    lines = calls.read_text().splitlines()
    assert lines[0].startswith("image inspect")
    assert lines[1] == "pull some/image"
    name = lines[2].split("--name ")[1].split()[0]
    assert lines[-1] == f"rm --force {name}"


def test_a_container_that_dies_is_reported_and_removed(docker, start):
    calls = docker()
    with pytest.raises(EngineError, match="exit code 3"):
        start("--dies-after", "0.1", "--exit-code", "3", "--log", "CUDA out of memory")
    assert calls.read_text().splitlines()[-1].startswith("rm --force servebench-fake-")


@pytest.mark.parametrize(
    ("image", "pull", "words"),
    [("no/such", "missing", "pull access denied for no/such"), ("some/image", "never", "launch.pull=never")],
)
def test_an_image_that_cannot_be_pulled(docker, start, image, pull, words):
    docker()
    with pytest.raises(EngineError, match=words):
        start(image=image, pull=pull)


def test_a_daemon_that_hangs_is_an_error_of_the_engine(docker, start, monkeypatch):
    docker()
    monkeypatch.setitem(docker_module._run.__kwdefaults__, "timeout_s", 0.5)
    with pytest.raises(EngineError, match=r"image inspect hangs' took longer than 0\.5 s") as caught:
        start(image="hangs")
    assert caught.value.kind == "image_missing"


@pytest.mark.parametrize("place", [".", "~"])
def test_a_model_is_mounted_where_the_command_looks_for_it(context_of, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    context = replace(context_of(8123), model=ModelSettings(name="m", path=place))
    argv = container_command(VllmEngine(), context, DockerSettings(name="docker", mount_caches=False), "c1").argv
    assert argv[argv.index("--volume") + 1] == f"{tmp_path}:/model/{tmp_path.name}:ro"
    assert f"/model/{tmp_path.name}" in argv


def test_the_container_is_removed_when_servebench_is_killed(docker, tmp_path):
    calls = docker()
    code = (
        "import sys, time; from pathlib import Path; from servebench.contracts.engine import Command;"
        "from servebench.engine.supervisor.started import GuardedProcess;"
        "GuardedProcess(Command(argv=('sleep', '9999')), Path(sys.argv[1]), 0.5, ('docker', 'rm', '--force', 'c1'));"
        "print('up', flush=True); time.sleep(9999)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "up\n"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: calls.exists() and calls.read_text() == "rm --force c1\n")
