"""Run short docker or podman commands: is the daemon there, pull an image, inspect a container."""

import contextlib
import subprocess
import time
from pathlib import Path

from servebench.contracts.engine import Say
from servebench.engine.launchers.docker_command import DockerSettings
from servebench.util.children import CONTAINER_VARIABLES, child_environment, find_program
from servebench.util.errors import EngineError, FailureKind, reason_of

PULL_TIMEOUT_S = 7200.0
"""Engine images have up to 20 GB."""
QUERY_TIMEOUT_S = 20.0
"""A daemon that is reached over SSH takes seconds to answer."""


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
    if settings.pull != "always":
        if _run(runtime, "image", "inspect", image).returncode == 0:
            return
        if settings.pull == "never":
            raise _no_image(
                f"the image {image} is not present and launch.pull=never; pull it with: {runtime} pull {image}"
            )
    say(f"pulling {image}")
    began_s = time.monotonic()
    try:
        done = _run(runtime, "pull", image, timeout_s=PULL_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        late = f"pulling the image {image} took longer than {PULL_TIMEOUT_S:g} s"
        raise _no_image(f"{late}; pull it yourself: {runtime} pull {image}") from error
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
