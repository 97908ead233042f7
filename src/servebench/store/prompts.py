"""The prompts of a study with several runs: sized once, and sent by all of its runs."""

import gzip
import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import orjson

from servebench.contracts.request import Request
from servebench.contracts.settings import ModelSettings, WorkloadSettings
from servebench.store.files import replacing, value_of, writing
from servebench.store.seal import FIELD, origin_of, sha256, signed
from servebench.util.bounded_file import gunzip, read_bytes
from servebench.util.errors import StoreError, reason_of

PROMPTS_BYTES_MAX = 1 << 30
KIND = "prompts"
SEAL_BEGINS = b',"seal":'


@dataclass(frozen=True)
class SizedPrompts:
    """Requests, and the tokenizer with which their prompts were sized; `exact` as in `Tokenizer`."""

    requests: tuple[Request, ...]
    tokenizer: str
    exact: bool


def prompts_file(folder: Path, workload: WorkloadSettings, model: ModelSettings, stream: str) -> Path:
    """Return the file for a stream of a workload (its seed included) for a model, by name."""
    key = hashlib.sha256(orjson.dumps([workload, model.name], option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]
    return folder / f"{workload.name}-{key}" / f"{stream}.json.gz"


def read_prompts(path: Path) -> SizedPrompts | None:
    """Return stored prompts; None where there are none. Raises StoreError for a file that cannot be read."""
    try:
        return value_of(SizedPrompts, _stored(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}; delete it, and the prompts are sized again") from error


def _stored(path: Path) -> bytes:
    try:
        return gunzip(read_bytes(path, PROMPTS_BYTES_MAX), PROMPTS_BYTES_MAX)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"cannot read {path}: {reason_of(error)}") from error


def adopt_prompts(folder: Path) -> None:
    """Sign the prompts of a study that are not this user's. Raises StoreError."""
    for path in strange_prompts(folder):
        with writing(path):
            body = _parted(_stored(path))[0]
        with replacing(path) as beside:
            beside.write_bytes(gzip.compress(_signed(body, path), 1))


def strange_prompts(folder: Path) -> list[Path]:
    """Return the files of a study's prompts that this user did not sign. Raises StoreError for one that cannot be read."""
    found = []
    for path in sorted(folder.glob("*/*.json.gz")):
        body, seal = _parted(_stored(path))
        if not origin_of(KIND, {"sha256": sha256(body), FIELD: seal}, *_scope(path)).own:
            found.append(path)
    return found


def _signed(body: bytes, path: Path) -> bytes:
    """Return stored prompts with this user's signature as the last value of their object."""
    seal = signed(KIND, {"sha256": sha256(body)}, *_scope(path)).get(FIELD)
    return body if seal is None else body[:-1] + SEAL_BEGINS + orjson.dumps(seal) + b"}"


def _parted(stored: bytes) -> tuple[bytes, object]:
    body, found, seal = stored.rpartition(SEAL_BEGINS)
    try:
        return (body + b"}", orjson.loads(seal[:-1])) if found else (stored, None)
    except ValueError:
        # a schema among the prompts may have such a key
        return stored, None


def _scope(path: Path) -> tuple[str, str]:
    # the folder's name says for which workload and model the prompts are
    return path.parent.name, path.name


def keep_prompts(path: Path, prompts: SizedPrompts) -> SizedPrompts:
    """Store prompts unless another run has done so meanwhile, and return those that are stored.

    Prompts that cannot be stored as JSON without a change (of a plugin) are returned and not stored. Raises StoreError.
    """
    try:
        data = orjson.dumps(prompts)
        if value_of(SizedPrompts, data) != prompts:
            return prompts
    except (TypeError, ValueError):
        return prompts
    beside = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.tmp")
    with writing(path):
        # of a study whose folder is gone nothing is made again
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(exist_ok=True)
        try:
            beside.write_bytes(gzip.compress(_signed(data, path), 1))
            # whichever run is first: the others send what it has stored
            if not path.exists():
                beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    return read_prompts(path) or prompts
