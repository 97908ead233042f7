"""The launcher `docker`: run an engine in a container, by docker or podman, with the same life as a process.

`docker run` stays in the foreground under the guard: the container's output goes to the log file, the container's end ends
the command, and SIGTERM is passed on. `docker rm --force` always runs at the end.
"""

import contextlib
import os
import secrets
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from servebench.contracts.engine import Command, ContainerImage, Engine, LaunchContext, Launcher, RunningEngine, Say
from servebench.contracts.settings import LaunchSettings
from servebench.engine.launchers.process import ANY_HOST, start_and_wait
from servebench.engine.supervisor.ports import port_problem
from servebench.engine.supervisor.started import StartedEngine
from servebench.util.children import CONTAINER_VARIABLES, child_environment, find_program
from servebench.util.errors import EngineError, FailureKind, reason_of

PULL_TIMEOUT_S = 7200.0
"""Engine images have up to 20 GB."""
QUERY_TIMEOUT_S = 20.0
"""A daemon that is reached over SSH takes seconds to answer."""
MODEL_FOLDER = "/model"
SCRATCH_FOLDER = "/tmp/servebench"  # noqa: S108 - inside the container
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - inside the container, whose port is published on `publish_host`


@dataclass(frozen=True, kw_only=True)
class DockerSettings(LaunchSettings):
    """How the container is created. Null means the default of the engine's official image or of the config's GPUs."""

    runtime: Literal["docker", "podman"] = "docker"
    image: str | None = None
    gpus: str | None = None
    shm_size: str | None = None
    network: Literal["bridge", "host"] = "bridge"
    publish_host: str | None = None
    pull: Literal["missing", "always", "never"] = "missing"
    mount_caches: bool = True
    volumes: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ("HF_TOKEN", "HF_ENDPOINT")
    args: tuple[str, ...] = ()


def remote_host(docker_host: str | None) -> str | None:
    """Return the machine that a value of `DOCKER_HOST` names; None if it is this one."""
    url = urlsplit(docker_host or "")
    if url.scheme in ("tcp", "ssh", "http", "https") and url.hostname not in (None, "localhost", "127.0.0.1", "::1"):
        return url.hostname
    return None


def image_of(engine: Engine, settings: DockerSettings) -> str | None:
    """Return the image to run; None if neither the config nor the engine names one."""
    return settings.image or (engine.container.image if engine.container else None)


def gpu_arguments(engine: Engine, context: LaunchContext, settings: DockerSettings) -> list[str]:
    """Return the arguments that give the container its GPUs: docker's own flag, or CDI devices for podman."""
    gpus = settings.gpus
    if gpus is None:
        if not engine.needs_gpu:
            return []
        gpus = str(context.gpu.count) if context.gpu.count else "all"
    if gpus == "none":
        return []
    if settings.runtime == "docker":
        return ["--gpus", f'"{gpus}"' if "," in gpus else gpus]
    indices = gpus.removeprefix("device=").split(",") if gpus.startswith("device=") else ["all"]
    if gpus.isdigit():
        indices = [str(index) for index in range(int(gpus))]
    return [argument for index in indices for argument in ("--device", f"nvidia.com/gpu={index}")]


def inner_context(context: LaunchContext, settings: DockerSettings, executable: str | None) -> LaunchContext:
    """Return the context as seen inside the container: host, mounted model, and the image's executable. A configured
    `engine.executable` names a program inside the container."""
    host = EVERYWHERE if settings.network == "bridge" else context.engine.host
    model = context.model
    if model.path is not None:
        model = replace(model, path=f"{MODEL_FOLDER}/{Path(model.path).expanduser().absolute().name}")
    return replace(
        context,
        engine=replace(context.engine, host=host, executable=context.engine.executable or executable),
        model=model,
        cache_dir=Path(SCRATCH_FOLDER),
    )


def container_command(engine: Engine, context: LaunchContext, settings: DockerSettings, name: str) -> Command:
    """Return the exact `docker run` command. Raises ConfigError as the engine's `command` does."""
    image = image_of(engine, settings) or ""
    official = replace(engine.container or ContainerImage(image=image), image=image)
    inner = engine.command(inner_context(context, settings, official.executable))
    arguments = [settings.runtime, "run", "--rm", "--init", "--name", name, *gpu_arguments(engine, context, settings)]
    arguments += ["--shm-size", settings.shm_size] if settings.shm_size else ["--ipc=host"]
    if settings.network == "host":
        arguments += ["--network", "host"]
    else:
        arguments += ["--publish", f"{publish_host(settings)}:{context.port}:{context.port}"]
    for volume in _volumes(official, context, settings):
        arguments += ["--volume", volume]
    # by name only: docker takes the values from its own environment, so that no process list shows them
    for variable in (*inner.env, *settings.pass_env):
        arguments += ["--env", variable]
    arguments += [*official.arguments, *settings.args, image]
    argv = inner.argv
    if official.entrypoint and argv[: len(official.entrypoint)] == official.entrypoint:
        argv = argv[len(official.entrypoint) :]
    return Command(argv=(*arguments, *argv), env=dict(inner.env), pass_env=(*settings.pass_env, *CONTAINER_VARIABLES))


def _volumes(official: ContainerImage, context: LaunchContext, settings: DockerSettings) -> list[str]:
    volumes = []
    if context.model.path is not None:
        path = Path(context.model.path).expanduser().absolute()
        volumes.append(f"{path}:{MODEL_FOLDER}/{path.name}:ro")
    if settings.mount_caches:
        volumes += [f"{Path.home() / here}:{there}" for here, there in official.caches.items()]
    return [*volumes, *settings.volumes]


def publish_host(settings: DockerSettings) -> str:
    """Return the address on which the container's port is published: loopback, unless the daemon is on another machine."""
    if settings.publish_host is not None:
        return settings.publish_host
    return EVERYWHERE if remote_host(os.environ.get("DOCKER_HOST")) else LOOPBACK


def _run(*arguments: str, timeout_s: float = QUERY_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    env = child_environment(None, *CONTAINER_VARIABLES)
    return subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)


def _error_text(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def runtime_problems(settings: DockerSettings) -> list[str]:
    """Return an error line if the runtime is missing or its daemon does not answer."""
    runtime = settings.runtime
    if find_program(runtime) is None:
        return [f"launch.runtime={runtime}: '{runtime}' is not on PATH; install it, or use launch=process"]
    try:
        done = _run(runtime, "info")
    except subprocess.TimeoutExpired:
        return [
            f"launch.runtime={runtime}: '{runtime} info' did not answer within {QUERY_TIMEOUT_S:g} s; "
            "check that its daemon is running (DOCKER_HOST)"
        ]
    except OSError as error:
        return [f"launch.runtime={runtime}: cannot run '{runtime}': {reason_of(error)}"]
    return [f"launch.runtime={runtime}: '{runtime} info' failed: {_error_text(done)}"] if done.returncode else []


def _no_image(message: str) -> EngineError:
    return EngineError(message, kind=FailureKind.IMAGE_MISSING)


def pull_image(settings: DockerSettings, image: str, say: Say) -> None:
    """Make sure that the image is present, as `launch.pull` says. May take long. Raises EngineError."""
    runtime = settings.runtime
    try:
        if settings.pull != "always":
            if _run(runtime, "image", "inspect", image).returncode == 0:
                return
            if settings.pull == "never":
                raise _no_image(
                    f"the image {image} is not present and launch.pull=never; pull it with: {runtime} pull {image}"
                )
        say(f"pulling {image}")
        began_s = time.monotonic()
        done = _run(runtime, "pull", image, timeout_s=PULL_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        late = f"'{' '.join(error.cmd)}' took longer than {error.timeout:g} s"
        raise _no_image(f"{late}; pull the image yourself: {runtime} pull {image}") from error
    if done.returncode:
        raise _no_image(f"cannot pull the image {image}: {_error_text(done)}; check launch.image")
    say(f"pulled {image} in {time.monotonic() - began_s:.0f} s")


def main_pid(runtime: str, name: str) -> int | None:
    """Return the pid on this machine of the container's first process, to watch its CPU and memory; None if unknown."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
        pid = int(_run(runtime, "inspect", "--format", "{{.State.Pid}}", name).stdout.strip())
        return pid if pid > 0 and Path(f"/proc/{pid}").exists() else None
    return None


def image_with_id(runtime: str, image: str) -> str:
    """Return the image's name and id, so that a manifest identifies exactly what ran; only the name if the id is unknown."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = _run(runtime, "image", "inspect", "--format", "{{.Id}}", image)
        return f"{image} {done.stdout.strip()}" if done.returncode == 0 and done.stdout.strip() else image
    return image


class DockerLauncher(Launcher):
    """Run the engine in a container."""

    name = "docker"
    settings_type = DockerSettings
    needs_executable = False

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """Report a missing or unusable runtime, an engine without an image, or a port in use."""
        assert isinstance(settings, DockerSettings)
        missing = f"engine={engine.name} has no official image; set launch.image="
        problems = [] if image_of(engine, settings) else [missing]
        if context.spans_endpoint is not None and settings.network == "bridge":
            problems.append(
                "engine.request_timings=spans: a container cannot reach "
                f"{context.engine.spans_address} of this machine; set launch.network=host"
            )
        problems += runtime_problems(settings)
        if not remote_host(os.environ.get("DOCKER_HOST")):
            port = port_problem(publish_host(settings), context.engine.port)
            problems += [str(port)] if port is not None else []
            path = context.model.path
            if path is not None and not Path(path).expanduser().exists():
                problems.append(f"model.path={path} does not exist, so it cannot be mounted into the container")
        return problems

    def command(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> Command:
        """Return the exact `docker run` command."""
        assert isinstance(settings, DockerSettings)
        return container_command(engine, context, settings, f"servebench-{engine.name}")

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Pull the image if necessary, start the container and wait for a first token. Raises EngineError; no container is
        left then."""
        assert isinstance(settings, DockerSettings)
        image = image_of(engine, settings)
        assert image is not None
        pull_image(settings, image, say)
        name = f"servebench-{engine.name}-{os.getpid()}-{secrets.token_hex(4)}"
        remote = remote_host(os.environ.get("DOCKER_HOST"))
        published = publish_host(settings)
        command = container_command(engine, context, settings, name)
        container: dict[str, Any] = {
            "container_host": remote or ANY_HOST.get(published, published),
            "remote": remote is not None,
            "finish": (settings.runtime, "rm", "--force", name),
        }

        def identify(running: StartedEngine) -> None:
            pid = None if remote else main_pid(settings.runtime, name)
            running.pids = () if pid is None else (pid,)
            running.image = image_with_id(settings.runtime, image)

        return start_and_wait(engine, context, command, log_path=log_path, say=say, when_ready=identify, **container)
