"""The manifest: what was run, on what, by whom it could be run again. Without secrets."""

import contextlib
import hashlib
import json
import platform
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any, Literal

import psutil

from servebench.contracts.results import SCHEMA_VERSION
from servebench.store.files import object_in, of_this_version, read_stored, write_text
from servebench.store.seal import FIELD, Origin, origin_of, signed
from servebench.util.bounded_file import STATE_BYTES_MAX
from servebench.util.children import program_output
from servebench.util.errors import StoreError, reason_of
from servebench.util.gpus import find_gpus, smi_rows
from servebench.util.processes import usable_cpus
from servebench.util.redaction import redact

KIND: Literal["manifest"] = "manifest"
PACKAGES = (
    *("servebench-suite", "hydra-core", "omegaconf", "pluggy", "httpx", "pandas", "pyarrow", "mlflow", "numpy"),
    *("orjson", "pydantic"),
)
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
GPU_FIELDS = (
    *("index", "name", "uuid", "memory.total", "driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem"),
)


def _cpu_model() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _gpus() -> list[dict[str, str | None]]:
    names = [name.replace(".", "_") for name in GPU_FIELDS]
    return [
        {name: None if cell.startswith("[") else cell.strip() for name, cell in zip(names, row, strict=True)}
        for row in smi_rows(GPU_FIELDS)
    ] or [
        {"index": str(one.index), "name": one.name, "uuid": one.uuid or None, "driver_version": one.driver}
        for one in find_gpus()
    ]


def capture_cores() -> dict[str, int | None]:
    """Return how many cores and hardware threads this machine has, and how many threads processes may use."""
    cores, threads = psutil.cpu_count(logical=False), psutil.cpu_count()
    return {"cpu_count": cores, "cpu_threads": threads, "cpu_threads_usable": len(usable_cpus())}


def capture_machine() -> dict[str, Any]:
    """Return system, processor, memory, GPUs with driver and CUDA of this machine. Never fails; what is unknown is null."""
    gpus = _gpus()
    # drivers from 610 on write "CUDA UMD Version"
    cuda = re.search(r"CUDA (?:UMD )?Version: *([\d.]+)", program_output("nvidia-smi") or "") if gpus else None
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu_model": _cpu_model(),
        **capture_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus,
        "cuda": cuda and cuda[1],
    }


@lru_cache(maxsize=1)
def capture_packages() -> Mapping[str, str]:
    """Return the versions of servebench, of its plugins and of the packages that it stands on."""
    # asked for by name: to read the metadata of all that is installed takes half a second before the first request
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    for point in entry_points(group="servebench"):
        if point.dist is not None:
            found[point.dist.name.lower()] = point.dist.version
    return dict(sorted(found.items()))


def capture_git(folder: Path) -> dict[str, object] | None:
    """Return the commit of the folder in which the command was given, and whether it had changes (null: unknown); None
    outside a checkout.

    A checkout may be a stranger's, and its settings can name programs to run (filters, file monitors, hooks, transports).
    So only its files are read, through a repository of our own with the settings of the user.
    """
    asked = ("--show-toplevel", "--show-object-format", "--git-path", "objects", "--git-path", "index", "--git-path")
    found = program_output(*GIT, "-C", str(folder), "rev-parse", "HEAD", *asked, "info/exclude")
    lines = (found or "").splitlines()
    if len(lines) != 6:
        return None
    commit, top, form, *paths = lines
    objects, index, exclude = ((folder / path).absolute() for path in paths)
    changes = None
    with tempfile.TemporaryDirectory(prefix="servebench-git-") as own, contextlib.suppress(OSError):
        for name in ("refs", "info"):
            (Path(own) / name).mkdir()
        (Path(own) / "HEAD").write_text(commit)
        version = f"repositoryformatversion = {int(form != 'sha1')}"
        extension = f"[extensions]\nobjectFormat = {form}\n" if form != "sha1" else ""
        (Path(own) / "config").write_text(f"[core]\n{version}\n{extension}")
        if exclude.is_file():
            shutil.copy(exclude, Path(own) / "info" / "exclude")
        env = {"GIT_DIR": own, "GIT_WORK_TREE": top, "GIT_OBJECT_DIRECTORY": str(objects), "GIT_INDEX_FILE": str(index)}
        changes = program_output(*GIT, "status", "--porcelain", "--ignore-submodules=dirty", env=env)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def digest(value: object) -> str:
    """Return the SHA-256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_facts(path: str | None) -> dict[str, object] | None:
    """Return size and time of change of a model file or folder; None when none is named or it is not here."""
    if path is None:
        return None
    with contextlib.suppress(OSError, RuntimeError):  # the latter for the home folder of nobody
        facts = Path(path).expanduser().stat()
        return {"path": path, "size_bytes": facts.st_size, "changed_s": facts.st_mtime}
    return None


def build_manifest(
    *, config: Mapping[str, Any], facts: Mapping[str, Any], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the manifest of a run: its resolved config, what the run knows (`facts`), and what the machine is.

    Secrets are taken out of all of it.
    """
    model_path = config.get("model", {}).get("path")
    manifest = {
        "schema_version": SCHEMA_VERSION,
        **facts,
        "config": config,
        "hashes": {"config": digest(redact(config)), "model_file": file_facts(model_path)},
        "machine": machine,
        "packages": capture_packages(),
        "git": capture_git(Path.cwd()),
    }
    cleaned: dict[str, Any] = redact(json.loads(json.dumps(manifest, default=str)))
    return cleaned


def write_manifest(path: Path, manifest: Mapping[str, Any], *, own: bool = True) -> None:
    """Write a manifest, whole or not at all, and signed if its config is this user's `own`. Raises StoreError."""
    write_text(path, json.dumps(signed(KIND, manifest) if own else manifest, indent=2) + "\n")


def adopt_manifest(path: Path, config: Mapping[str, Any]) -> None:
    """Sign a manifest that another machine wrote of a run with this config, which this user sent there. Raises StoreError."""
    if path.exists():
        manifest, origin = read_signed_manifest(path)
        if not origin.own and manifest["config"] == redact(json.loads(json.dumps(config, default=str))):
            write_manifest(path, manifest)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a manifest, of which at least version and config are as they should be. Raises StoreError."""
    return read_signed_manifest(path)[0]


def read_signed_manifest(path: Path) -> tuple[dict[str, Any], Origin]:
    """Return a manifest and where it is from. Raises StoreError."""
    try:
        manifest = object_in(read_stored(path, STATE_BYTES_MAX), path)
    except FileNotFoundError as error:
        raise StoreError(f"{path} cannot be read: {reason_of(error)}") from error
    if not isinstance(manifest.get("config"), dict):
        raise StoreError(
            f"{path} is not the manifest of a run: it has no config; give the manifest.json of a run's folder"
        )
    origin = origin_of(KIND, manifest)
    manifest.pop(FIELD, None)
    return of_this_version(manifest, path), origin
