"""The order for a run: what its machine must know, provide and receive."""

import io
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from servebench.cluster.heartbeat import FILE
from servebench.config import Job
from servebench.contracts.cluster import ClusterSettings, RaySettings, RunOrder
from servebench.contracts.engine import GPUS_VARIABLE, Launcher
from servebench.contracts.settings import RunSettings
from servebench.contracts.turns import Turn
from servebench.registry.registry import Registry
from servebench.run.session import RunTask
from servebench.store.files import replacing, writing
from servebench.store.layout import StudyFolder
from servebench.store.state import StudyState
from servebench.util.bounded_file import size_text
from servebench.util.errors import StoreError
from servebench.util.redaction import redact

SENT_FILE_BYTES_MAX = 256 << 20
RECEIVED_BYTES_MAX, RECEIVED_FILES_MAX = 16 << 30, 100_000


def order_for(
    folder: StudyFolder,
    state: StudyState,
    task: RunTask,
    turns: Sequence[Turn],
    *,
    settings: ClusterSettings,
    registry: Registry,
) -> RunOrder:
    """Return the order for turns of a run, with the variables and files that its machine may lack. Raises OSError."""
    job = task.job
    return RunOrder(
        study=str(folder.path),
        run=task.name,
        title=job.title,
        ticket=state.ticket,
        overrides=job.overrides,
        config=redact(json.loads(json.dumps(job.resolved, default=str))),
        gpus=gpus_needed(job.settings, registry.launcher(job.settings.launch.name)),
        runs_per_machine=settings.runs_per_machine,
        cluster_gives_gpus=settings.name != "submitit_local",
        visible_gpus=os.environ.get(GPUS_VARIABLE),
        environ=named_variables(job, os.environ),
        files=study_files(folder, task.name) if isinstance(settings, RaySettings) else {},
        turns=tuple(turns),
    )


def gpus_needed(settings: RunSettings, launcher: Launcher) -> int:
    """Return how many GPUs of its machine a run uses."""
    uses_gpus = launcher.local and not launcher.emulated and settings.gpu.name != "none"
    return max(1, settings.gpu.count) if uses_gpus else 0


def visible_gpus(machine: Mapping[str, Any], visible: str | None) -> list[str]:
    """Return the GPUs that a process may use: those in CUDA_VISIBLE_DEVICES, else all that the driver lists."""
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return [str(gpu["index"]) for gpu in machine["gpus"]]


def named_variables(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the config names (keys of endpoints, `pass_env`), and secret values, which the plan lacks."""
    launch, engine_env = job.settings.launch, dict(job.settings.engine.env)
    named = [getattr(part, "api_key_env", None) for part in (launch, *vars(job.settings.quality).values())]
    named += [*getattr(launch, "pass_env", ()), *getattr(launch, "headers_env", {}).values()]
    public = redact({"engine": {"env": engine_env}})["engine"]["env"]
    found = {name: environ[name] for name in named if name and name in environ}
    return found | {name: value for name, value in engine_env.items() if public.get(name) != value}


def study_files(folder: StudyFolder, run: str) -> dict[str, bytes]:
    """Return the files that a machine without the study's disk needs: the plan, the prompts that its runs share, and the
    run's own files from earlier attempts."""
    own = sorted(path for path in folder.run(run).path.rglob("*") if path.is_file())
    sent = [path for path in own if path.stat().st_size <= SENT_FILE_BYTES_MAX]
    return prompt_files(folder) | _contents(folder, [folder.plan, folder.state, *sent])


def prompt_files(folder: StudyFolder) -> dict[str, bytes]:
    """Return the prompts that the runs of a study share, by path in its folder."""
    return _contents(folder, sorted(folder.prompts.glob("*/*.json.gz")))


def _contents(folder: StudyFolder, paths: Sequence[Path]) -> dict[str, bytes]:
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in paths}


def keep_prompt_files(folder: StudyFolder, files: Mapping[str, bytes]) -> None:
    """Store prompts that a run on another machine has sized; those of an earlier run stay. Raises StoreError."""
    for name, content in files.items():
        path = folder.path / name
        if path.exists() or not path.resolve().is_relative_to(folder.prompts.resolve()):
            continue
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            beside.write_bytes(content)


def pack_run(run: Path) -> bytes:
    """Return a run's folder as a compressed archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", compresslevel=1) as archive:
        archive.add(run, arcname="", filter=lambda member: None if Path(member.name).name == FILE else member)
    return data.getvalue()


def unpack_run(files: bytes, run: Path) -> None:
    """Write the files of an archive into a run's folder: all, or none if the archive is damaged or holds what a run does not.

    Raises StoreError.
    """
    beside = run.with_name(f".{run.name}.unpacked")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(files), mode="r:gz") as archive:
            archive.extractall(beside, members=_plain_members(archive), filter="data")
        for path in sorted(path for path in beside.rglob("*") if path.is_file()):
            target = run / path.relative_to(beside)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
        raise StoreError(f"cannot write the files of {run.name} to {run}: {error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _plain_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield files and folders as long as they are few and small enough. Raises TarError."""
    left = RECEIVED_BYTES_MAX
    for number, member in enumerate(archive):
        left -= member.size
        if not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name[:200]!r} is a link or a device")
        if left < 0 or number >= RECEIVED_FILES_MAX:
            raise tarfile.TarError(
                f"more than {RECEIVED_FILES_MAX} files or {size_text(RECEIVED_BYTES_MAX)}, the limits"
            )
        yield member
