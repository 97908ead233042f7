"""The weights of a model: its GGUF files, and format, quantization and digest of those that an engine was started with.

The header of a GGUF file is a list of keys with typed values, in no fixed order: in a file that was quantized again the key
stands behind the vocabulary, which is some MB. The header is untrusted, so the bytes, keys and elements that are read are
bounded.
"""

import hashlib
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from servebench.contracts.settings import ModelSettings
from servebench.util.bounded_file import open_regular, read_json

UNKNOWN = "unknown"
EDGE_BYTES = 1 << 20
NAME_MAX = 100
WEIGHT_FILES = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx", ".engine")
GGUF_QUANTIZATION = re.compile(r"(?:^|[-_.])((?:I?Q\d\w{0,20}|BF16|F16|F32|MXFP4\w{0,20}))(?=[-_.]|$)", re.IGNORECASE)
MAGIC = b"GGUF"
KEY = b"general.file_type"
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0",
}  # fmt: skip
"""The names of llama.cpp's `llama_ftype`, which most of the weights have."""
GUESSED = 1024
"""The bit of a file type that llama.cpp has guessed."""
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""The bytes of each type of value; the types without a fixed size are STRING and ARRAY."""
STRING, ARRAY, UINT32 = 8, 9, 4
HEADER_BYTES_MAX = 64 << 20
KEYS_MAX = 10_000
STRINGS_MAX = 2_000_000
"""Of all lists of texts: the vocabulary and its merges are less than 600,000."""


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
        return gguf_quantization(source) or (str(named[-1]).upper() if named else UNKNOWN)
    try:
        config: dict[str, Any] = read_json(source / "config.json")
        quantized = config.get("quantization_config") or {}
        precision = quantized.get("quant_method") or config.get("torch_dtype") or config.get("dtype") or UNKNOWN
        return str(precision)[:NAME_MAX]
    except (OSError, ValueError, AttributeError):
        return UNKNOWN


class _Header:
    """The beginning of a GGUF file. Its methods raise ValueError for bytes that are no header, or exceed a limit."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left, self._strings = file, HEADER_BYTES_MAX, STRINGS_MAX

    def number(self, layout: str) -> int:
        """Return an unsigned number: `<I` of 4 bytes or `<Q` of 8."""
        value: int = struct.unpack(layout, self.read(struct.calcsize(layout)))[0]
        return value

    def read(self, count: int) -> bytes:
        """Return the next bytes."""
        self._spend(count)
        found = self._file.read(count)
        if len(found) < count:
            raise ValueError("the file is cut off")
        return found

    def skip(self, kind: int) -> None:
        """Go to the end of a value of a type."""
        count = 1
        if kind == ARRAY:
            kind, count = self.number("<I"), self.number("<Q")
        if kind in SIZES:
            self._pass(SIZES[kind] * count)
            return
        self._strings -= count
        if kind != STRING or self._strings < 0:
            raise ValueError("an unknown type, or too many texts")
        for _ in range(count):
            self._pass(self.number("<Q"))

    def _pass(self, count: int) -> None:
        self._spend(count)
        self._file.seek(count, 1)

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError("the header is too long")


def gguf_quantization(path: Path) -> str | None:
    """Return how the weights of a GGUF file are quantized, such as `Q4_K_M`; None where its header does not say. Raises
    OSError."""
    with open_regular(path) as file:
        try:
            value = _file_type(_Header(file))
        except ValueError:
            return None
    return None if value is None else FILE_TYPES.get(value & ~GUESSED)


def _file_type(header: _Header) -> int | None:
    """Return the value of KEY; None without it. Version 1 of the format, of summer 2023, has shorter counts."""
    if header.read(len(MAGIC)) != MAGIC or header.number("<I") not in (2, 3):
        return None
    header.number("<Q")  # the tensors
    keys = header.number("<Q")
    for _ in range(min(keys, KEYS_MAX)):
        length = header.number("<Q")
        name = header.read(length)
        kind = header.number("<I")
        if name == KEY:
            return header.number("<I") if kind == UINT32 else None
        header.skip(kind)
    return None


def gguf_files(folder: Path) -> list[Path]:
    """Return the GGUF files of a model's folder: those in it, else those next to it whose names begin with its name; none of what
    is no folder. So the same `model.path` works for engines that read the folder and for those that read one file."""
    if not folder.is_dir():
        return []
    inside = sorted(folder.glob("*.gguf"))
    return inside or sorted(path for path in folder.parent.glob("*.gguf") if path.name.startswith(folder.name))
