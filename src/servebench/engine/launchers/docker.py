"""The launcher `docker`: run an engine in a container, by docker or podman, with the same life as a process.

`docker run` stays in the foreground under the guard: the container's output goes to the log file, the container's end ends
the command, and SIGTERM is passed on. `docker rm --force` always runs at the end.
"""

import os
import secrets
from pathlib import Path

from servebench.contracts.engine import Command, Engine, LaunchContext, Launcher, RunningEngine, Say
from servebench.contracts.settings import LaunchSettings
from servebench.engine.launchers.container_runtime import image_with_id, main_pid, pull_image, runtime_problems
from servebench.engine.launchers.docker_command import (
    DockerSettings,
    container_command,
    image_of,
    publish_host,
    remote_host,
)
from servebench.engine.launchers.process import ANY_HOST, Container, start, start_and_wait, unlaunchable
from servebench.engine.supervisor.ports import port_problem
from servebench.engine.supervisor.started import StartedEngine


class DockerLauncher(Launcher):
    """Run the engine in a container."""

    name = "docker"
    settings_type = DockerSettings
    needs_executable = False

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """Report a missing or unusable runtime, an engine without an image, or a port in use."""
        assert isinstance(settings, DockerSettings)
        problems = unlaunchable(engine)
        if not problems and image_of(engine, settings) is None:
            problems.append(f"engine={engine.name} has no official image; set launch.image=")
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
        container = Container(
            host=remote or ANY_HOST.get(published, published), finish=(settings.runtime, "rm", "--force", name)
        )

        def start_container() -> StartedEngine:
            running = start(engine, context, command, log_path, container)
            running.remote = remote is not None
            running.pids = ()
            return running

        def identify(running: StartedEngine) -> None:
            pid = None if remote else main_pid(settings.runtime, name)
            running.pids = () if pid is None else (pid,)
            running.image = image_with_id(settings.runtime, image)

        return start_and_wait(start_container, context, say, identify)
