"""Finds the GGUF files of a model, and reads from the header of one how its weights are quantized.

A header is a list of keys with typed values, in no fixed order: in a file that was quantized again the key stands behind
the vocabulary, which is some MB. The header is untrusted, so the bytes, keys and elements that are read are bounded.
"""

import struct
from pathlib import Path
from typing import BinaryIO

from servebench.util.bounded_file import open_regular

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


class _HeaderError(ValueError):
    """The bytes are not a header, or exceed a limit."""


class _Header:
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
            raise _HeaderError
        return found

    def skip(self, kind: int) -> None:
        """Go to the end of a value of a type."""
        if kind == STRING:
            self._pass(self.number("<Q"))
        elif kind == ARRAY:
            element, count = self.number("<I"), self.number("<Q")
            if element in SIZES:
                self._pass(SIZES[element] * count)
            elif element == STRING:
                self._strings -= count
                if self._strings < 0:
                    raise _HeaderError
                for _ in range(count):
                    self._pass(self.number("<Q"))
            else:
                raise _HeaderError
        elif kind in SIZES:
            self._pass(SIZES[kind])
        else:
            raise _HeaderError

    def _pass(self, count: int) -> None:
        self._spend(count)
        self._file.seek(count, 1)

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _HeaderError


def quantization(path: Path) -> str | None:
    """Return how the weights of a GGUF file are quantized, such as `Q4_K_M`; None where its header does not say. Raises
    OSError."""
    with open_regular(path) as file:
        try:
            value = _file_type(_Header(file))
        except _HeaderError:
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
