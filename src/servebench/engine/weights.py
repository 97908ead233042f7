"""Facts about the weights that an engine was started with: format, quantization, and a digest of their files."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from servebench.contracts.settings import ModelSettings
from servebench.engine import gguf
from servebench.util.bounded_file import read_json

UNKNOWN = "unknown"
EDGE_BYTES = 1 << 20
NAME_MAX = 100
WEIGHT_FILES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx", ".engine")
GGUF_QUANTIZATION = re.compile(r"(?:^|[-_.])((?:I?Q\d\w{0,20}|BF16|F16|F32|MXFP4\w{0,20}))(?=[-_.]|$)", re.IGNORECASE)


def weights_facts(model: ModelSettings, argv: Sequence[str] | None) -> dict[str, str]:
    """Return format, quantization, digest and revision of the weights of a command, each `unknown` where that is not known:
    for a server that was already running, and for what an engine fetches from a repository itself."""
    facts = dict.fromkeys(("format", "quantization", "digest", "revision"), UNKNOWN)
    if model.revision is not None:
        facts["revision"] = model.revision
    named = [Path(word) for word in argv or () if word.lower().endswith(".gguf")]
    source = next(iter(named), Path(model.path).expanduser() if argv is not None and model.path is not None else None)
    try:
        found = [] if source is None else [source] if source.is_file() else source.glob("*")
        files = sorted(
            path for path in found if path.is_file() and (path == source or path.suffix.lower() in WEIGHT_FILES)
        )
        if source is None or not files:
            return facts
        return {**facts, "format": files[0].suffix[1:], "quantization": _quantization(source), "digest": digest(files)}
    except OSError:
        return facts


def digest(files: Sequence[Path]) -> str:
    """Return a digest of files: SHA-256 of their names, sizes, and first and last MiB. Quick, and different for other weights;
    it does not prove that all bytes are equal. Raises OSError."""
    found = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        found.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            found.update(file.read(EDGE_BYTES))
            file.seek(max(0, size - EDGE_BYTES))
            found.update(file.read(EDGE_BYTES))
    return f"sha256:{found.hexdigest()[:32]}"


def _quantization(source: Path) -> str:
    """Return how weights are quantized: by the header of a GGUF file, else by its name; by the `config.json` of a folder.
    Raises OSError."""
    if source.is_file():
        named = GGUF_QUANTIZATION.findall(source.stem)
        return gguf.quantization(source) or (str(named[-1]).upper() if named else UNKNOWN)
    try:
        config: dict[str, Any] = read_json(source / "config.json")
        quantized = config.get("quantization_config") or {}
        precision = quantized.get("quant_method") or config.get("torch_dtype") or config.get("dtype") or UNKNOWN
        return str(precision)[:NAME_MAX]
    except (OSError, ValueError, AttributeError):
        return UNKNOWN
