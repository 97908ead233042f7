"""Compose the `docker run` (or `podman run`) command of an engine. Pure, except for the home folder and DOCKER_HOST."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from servebench.contracts.engine import Command, ContainerImage, Engine, LaunchContext
from servebench.contracts.settings import LaunchSettings
from servebench.util.children import CONTAINER_VARIABLES

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
    """Return the context as seen inside the container: host, mounted model, and the image's executable.

    A configured `engine.executable` names a program inside the container.
    """
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
