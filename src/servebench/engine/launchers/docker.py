"""The launcher `docker`: an engine in a container, by docker or podman, with the same life as a process.

`docker run` stays in the foreground under the guard: what the container says goes to the log file, its end is the
command's end, and SIGTERM is passed on to it. Whatever happens, `docker rm --force` is run at the end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from servebench.contracts.engine import (
    Command,
    ContainerImage,
    Engine,
    LaunchContext,
    Launcher,
    RunningEngine,
    Say,
)
from servebench.contracts.settings import LaunchSettings
from servebench.engine.launchers.process import ANY_HOST, Container, start, wait_until_ready
from servebench.engine.supervisor.ports import port_fault
from servebench.engine.supervisor.shield import shielded
from servebench.util.errors import EngineError

PULL_TIMEOUT_S = 7200.0
"""Images of engines have up to 20 GB."""
ASK_TIMEOUT_S = 20.0
"""What a daemon may take to say that it is there; one over SSH takes seconds."""

MODEL_FOLDER = "/model"
SCRATCH_FOLDER = "/tmp/servebench"  # noqa: S108 - inside the container
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - inside the container, whose port is published where `publish_host` says


@dataclass(frozen=True, kw_only=True)
class DockerSettings(LaunchSettings):
    """How the container is made. Null leaves the choice to the engine's official image and to the config's GPUs."""

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
    """The machine that `DOCKER_HOST` names; None when it is this one."""
    url = urlsplit(docker_host or "")
    if url.scheme in ("tcp", "ssh", "http", "https") and url.hostname not in (None, "localhost", "127.0.0.1", "::1"):
        return url.hostname
    return None


def image_of(engine: Engine, settings: DockerSettings) -> str | None:
    """The image to run; None when nobody names one."""
    return settings.image or (engine.container.image if engine.container else None)


def gpu_words(engine: Engine, context: LaunchContext, settings: DockerSettings) -> list[str]:
    """The words that give the container its GPUs: docker's own flag, podman's by CDI."""
    asked = settings.gpus
    if asked is None:
        if not engine.needs_gpu:
            return []
        asked = str(context.gpu.count) if context.gpu.count else "all"
    if asked == "none":
        return []
    if settings.runtime == "docker":
        return ["--gpus", f'"{asked}"' if "," in asked else asked]
    if asked.startswith("device="):
        return [
            word
            for index in asked.removeprefix("device=").split(",")
            for word in ("--device", f"nvidia.com/gpu={index}")
        ]
    indices = range(int(asked)) if asked.isdigit() else ("all",)
    return [word for index in indices for word in ("--device", f"nvidia.com/gpu={index}")]


def inner_context(context: LaunchContext, settings: DockerSettings, executable: str | None) -> LaunchContext:
    """The context as it is inside the container: listening everywhere, the model mounted, the image's program.

    `engine.executable` names a program inside the container here.
    """
    host = EVERYWHERE if settings.network == "bridge" else context.engine.host
    model = context.model
    if model.path is not None:
        path = Path(model.path)
        model = replace(model, path=f"{MODEL_FOLDER}/{path.name}")
    return replace(
        context,
        engine=replace(context.engine, host=host, executable=context.engine.executable or executable),
        model=model,
        cache_dir=Path(SCRATCH_FOLDER),
    )


def container_command(engine: Engine, context: LaunchContext, settings: DockerSettings, name: str) -> Command:
    """The exact `docker run`. Pure, but for the home folder and DOCKER_HOST. Raises ConfigError as the engine does."""
    image = image_of(engine, settings) or ""
    official = replace(engine.container or ContainerImage(image=image), image=image)
    inner = engine.command(inner_context(context, settings, official.executable))
    words = [settings.runtime, "run", "--rm", "--init", "--name", name, *gpu_words(engine, context, settings)]
    words += ["--shm-size", settings.shm_size] if settings.shm_size else ["--ipc=host"]
    if settings.network == "host":
        words += ["--network", "host"]
    else:
        words += ["--publish", f"{publish_host(settings)}:{context.port}:{context.port}"]
    if context.model.path is not None:
        path = Path(context.model.path).expanduser().absolute()
        words += ["--volume", f"{path}:{MODEL_FOLDER}/{path.name}:ro"]
    if settings.mount_caches:
        words += [
            word for here, there in official.caches.items() for word in ("--volume", f"{Path.home() / here}:{there}")
        ]
    words += [word for volume in settings.volumes for word in ("--volume", volume)]
    # by name only: docker takes the values from its own environment, so that no process list shows them
    words += [word for key in (*inner.env, *settings.pass_env) for word in ("--env", key)]
    words += [*official.arguments, *settings.args, image]
    argv = inner.argv
    entrypoint = official.entrypoint
    if entrypoint and argv[: len(entrypoint)] == entrypoint:
        argv = argv[len(entrypoint) :]
    return Command(argv=(*words, *argv), env=dict(inner.env))


def publish_host(settings: DockerSettings) -> str:
    """Where the container's port is published: this machine alone, unless the daemon is on another one."""
    if settings.publish_host is not None:
        return settings.publish_host
    return EVERYWHERE if remote_host(os.environ.get("DOCKER_HOST")) else LOOPBACK


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a short docker command. Raises OSError, subprocess.TimeoutExpired."""
    return subprocess.run(words, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


class DockerLauncher(Launcher):
    """Starts the engine in a container."""

    name = "docker"
    settings_type = DockerSettings
    needs_executable = False

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """A runtime that is not there or whose daemon does not answer, an engine without an image, a port in use."""
        assert isinstance(settings, DockerSettings)
        faults = []
        if not engine.launchable:
            faults.append(
                f"engine={engine.name} cannot be started; measure a running server with launch=attach launch.base_url=..."
            )
        elif image_of(engine, settings) is None:
            faults.append(f"engine={engine.name} has no official image; name one with launch.image=")
        if engine.commands_before(context):
            faults.append(
                f"engine={engine.name}: what it needs is built on this machine, and nothing is built in a container; "
                "use launch=process, or settings without a build"
            )
        faults += _runtime_faults(settings)
        if not remote_host(os.environ.get("DOCKER_HOST")):
            fault = port_fault(publish_host(settings), context.engine.port)
            faults += [str(fault)] if fault is not None else []
            path = context.model.path
            if path is not None and not Path(path).expanduser().exists():
                faults.append(f"model.path={path} does not exist, so it cannot be mounted")
        return faults

    def command(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> Command:
        """The exact `docker run`."""
        assert isinstance(settings, DockerSettings)
        return container_command(engine, context, settings, f"servebench-{engine.name}")

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Pull the image where asked, start the container and wait for a first token. Raises EngineError; no container
        is left then."""
        assert isinstance(settings, DockerSettings)
        image = image_of(engine, settings)
        assert image is not None
        _pull(settings, image, say)
        name = f"servebench-{engine.name}-{os.getpid()}-{secrets.token_hex(4)}"
        remote = remote_host(os.environ.get("DOCKER_HOST"))
        published = publish_host(settings)
        host = remote or ANY_HOST.get(published, published)
        command = container_command(engine, context, settings, name)
        container = Container(host=host, finish=(settings.runtime, "rm", "--force", name))
        running = None
        try:
            with shielded():
                running = start(engine, context, command, log_path, container)
                running.remote = remote is not None
                running.pid = None
            wait_until_ready(running, context, say)
            running.pid = None if remote else _main_pid(settings.runtime, name)
            running.image = _image_digest(settings.runtime, image)
        except BaseException:
            if running is not None:
                running.stop()
            raise
        return running


def _runtime_faults(settings: DockerSettings) -> list[str]:
    if shutil.which(settings.runtime) is None:
        return [f"launch.runtime={settings.runtime} is not on PATH; install it, or use launch=process"]
    try:
        done = _ask(settings.runtime, "info")
    except subprocess.TimeoutExpired:
        return [f"{settings.runtime} does not answer within {ASK_TIMEOUT_S:g} s; is its daemon running (DOCKER_HOST)?"]
    except OSError as error:
        return [f"launch.runtime={settings.runtime} cannot be run: {(error.strerror or str(error)).lower()}"]
    return [f"{settings.runtime} cannot be used: {_said(done)}"] if done.returncode else []


def _pull(settings: DockerSettings, image: str, say: Say) -> None:
    """Have the image here. May take long. Raises EngineError."""
    runtime = settings.runtime
    if settings.pull != "always":
        present = _ask(runtime, "image", "inspect", image).returncode == 0
        if present:
            return
        if settings.pull == "never":
            raise EngineError(
                f"the image {image} is not here and launch.pull=never; pull it with: {runtime} pull {image}",
                kind="image_missing",
            )
    say(f"pulling {image}")
    began = time.monotonic()
    try:
        done = subprocess.run(
            [runtime, "pull", image], capture_output=True, text=True, check=False, timeout=PULL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"the image {image} was not pulled within {PULL_TIMEOUT_S:g} s; pull it by hand: {runtime} pull {image}",
            kind="image_missing",
        ) from error
    if done.returncode:
        raise EngineError(
            f"the image {image} cannot be pulled: {_said(done)}; check launch.image", kind="image_missing"
        )
    say(f"pulled {image} in {time.monotonic() - began:.0f} s")


def _main_pid(runtime: str, name: str) -> int | None:
    """The container's first process as this machine sees it, for its CPU and memory; None where that is not told."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
        pid = int(_ask(runtime, "inspect", "--format", "{{.State.Pid}}", name).stdout.strip())
        return pid if pid > 0 and Path(f"/proc/{pid}").exists() else None
    return None


def _image_digest(runtime: str, image: str) -> str | None:
    """The image's id, so that a manifest names exactly what ran; None where it is not told."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = _ask(runtime, "image", "inspect", "--format", "{{.Id}}", image)
        return f"{image} {done.stdout.strip()}" if done.returncode == 0 and done.stdout.strip() else image
    return image
