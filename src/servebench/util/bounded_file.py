"""Read files that others may have made: only regular ones, up to a size, a nesting and a number of values.

A device or a pipe would never end, a sparse file fills the memory, and so does a small one that describes a large value.
"""

import csv
import errno
import io
import json
import os
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TextIO

STATE_BYTES_MAX = 16 << 20
"""Manifests and the states of runs."""
STUDY_BYTES_MAX = 64 << 20
"""Plans and states of studies, which list all their runs."""
RESULT_BYTES_MAX = 128 << 20
"""Result files of other tools."""
DATASET_BYTES_MAX = 2 << 30
"""Data sets and traces that the user names."""
PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""How a packed file begins, and the codec that unpacks it."""
PACKED_SUFFIXES = (".gz", ".zst")
DEPTH_MAX = 100
CONTAINERS_MAX = 2_000_000
"""Objects and lists in one document: an empty one of two bytes takes a hundred in memory."""
VALUES_MAX = 8_000_000
"""Values in one document, a key as one: the shortest text takes twenty times as much in memory as in the file."""
ROW_VALUES_MAX = 4 * VALUES_MAX
"""Values in one row of a data set; a long session of an agent has ten million."""
DIGITS_MAX = 20
YAML_CHARACTERS_MAX = 256 << 10
"""Its parser takes seconds for a megabyte."""
TOO_DEEP = f"it is nested too deeply; the limit is {DEPTH_MAX} levels"


class LimitError(ValueError):
    """A document is more than is read of one; the text says what and the limit."""


def size_text(size: int) -> str:
    """Return a number of bytes as a limit is written: `16 MiB`."""
    units = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
    unit, name = next((one for one in units if size >= one[0]), units[-1])
    return f"{size / unit:.4g} {name}"


def open_regular(path: Path, bytes_max: int | None = None) -> BinaryIO:
    """Open a regular file of at most `bytes_max` bytes. Raises OSError, whose `strerror` says what is wrong."""
    _check(path.stat(), path, bytes_max)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check(os.fstat(descriptor), path, bytes_max)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _check(found: os.stat_result, path: Path, bytes_max: int | None) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if bytes_max is not None and found.st_size > bytes_max:
        raise OSError(
            errno.EFBIG, f"it has {size_text(found.st_size)}, and the limit is {size_text(bytes_max)}", str(path)
        )


def suffix_of(path: Path) -> str:
    """Return the type of a file by its name, in lower case; of a packed one that of what is in it (`.csv` of `a.csv.gz`)."""
    whole = Path(path.stem) if path.suffix.lower() in PACKED_SUFFIXES else path
    return whole.suffix.lower()


class _Unpacked(io.RawIOBase):
    """What a packed file holds, up to a size."""

    def __init__(self, file: BinaryIO, codec: str, bytes_max: int) -> None:
        import pyarrow as pa

        self._stream = pa.CompressedInputStream(file, codec)
        self._left, self._bytes_max = bytes_max, bytes_max

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.EFBIG, f"it unpacks to more than {size_text(self._bytes_max)}, the limit")
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def open_unpacked(path: Path, bytes_max: int) -> BinaryIO:
    """Open a regular file as `open_regular` does, and read what is in it if it is packed with gzip or zstd. Raises OSError, also
    while it is read."""
    file = open_regular(path, bytes_max)
    try:
        begins = file.peek(4)  # type: ignore[attr-defined]
    except OSError:
        file.close()
        raise
    codec = next((one for magic, one in PACKED.items() if begins.startswith(magic)), None)
    return file if codec is None else io.BufferedReader(_Unpacked(file, codec, bytes_max))


def open_text(path: Path, bytes_max: int, *, newline: str | None = None) -> TextIO:
    """Open a regular UTF-8 file, packed or not, with or without a byte order mark. Raises OSError."""
    return io.TextIOWrapper(open_unpacked(path, bytes_max), encoding="utf-8-sig", newline=newline)


def table_lines(lines: Iterator[str], usual: str = ",") -> tuple[Iterator[str], str]:
    """Return the lines of a CSV file, and what separates its columns: `usual`, unless the header has one column with it and more
    with a semicolon, a tab or a comma."""
    header = next(lines, "")
    counts = {sign: len(next(csv.reader([header], delimiter=sign), ())) for sign in (usual, ";", "\t", ",")}
    return chain([header], lines), usual if counts[usual] > 1 else max(counts, key=counts.__getitem__)


def read_bytes(path: Path, bytes_max: int) -> bytes:
    """Return the content of a regular file, which may grow while it is read. Raises OSError."""
    with open_regular(path, bytes_max) as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {size_text(bytes_max)}, the limit", str(path))
    return data


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises OSError, ValueError."""
    return parse_json(read_bytes(path, STATE_BYTES_MAX))


def parse_json(data: bytes | str, *, values_max: int = VALUES_MAX) -> Any:
    """Return the value of a JSON document. Raises LimitError for one that is nested too deeply or has too many values, and
    ValueError for a broken one."""
    signs: Any = ("[", "{", ",", ":") if isinstance(data, str) else (b"[", b"{", b",", b":")
    lists, objects, *others = (data.count(sign) for sign in signs)
    if (count := lists + objects) > CONTAINERS_MAX:
        raise LimitError(f"it has {count:,} objects and lists, and the limit is {CONTAINERS_MAX:,}")
    if (values := count + sum(others)) > values_max:
        raise LimitError(f"it has {values:,} values or so, and the limit is {values_max:,}")
    try:
        value = json.loads(data, parse_int=_integer)
    except RecursionError:
        raise LimitError(TOO_DEEP) from None
    if count > DEPTH_MAX and isinstance(value, (dict, list)):
        _check_depth(value)
    return value


def json_object(text: object) -> dict[str, Any]:
    """Return the object in a stored JSON text; an empty one for anything else."""
    try:
        value = parse_json(text) if isinstance(text, str) else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _integer(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise LimitError(f"it has a whole number of {len(text)} digits, and the limit is {DIGITS_MAX}")
    return int(text)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        items = (item for one in level for item in (one.values() if isinstance(one, dict) else one))
        level = [item for item in items if isinstance(item, (dict, list))]
        if not level:
            return
    raise LimitError(TOO_DEEP)


def load_yaml(text: str) -> Any:
    """Return the value of a YAML document. Raises LimitError for one that is nested too deeply or that aliases multiply, and
    yaml.YAMLError for a broken one."""
    import yaml

    if len(text) > YAML_CHARACTERS_MAX:
        raise LimitError(f"it has {size_text(len(text))}, and the limit is {size_text(YAML_CHARACTERS_MAX)}")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    expanded = 0
    anchors: dict[str | None, int] = {}
    begun: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=loader):
        size = 1
        if isinstance(event, yaml.AliasEvent):
            size = anchors.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            begun.append((event.anchor, expanded))
            if len(begun) > DEPTH_MAX:
                raise LimitError(TOO_DEEP)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            anchors[anchor] = expanded + 1 - before
        expanded += size
        if expanded > CONTAINERS_MAX:
            raise LimitError(f"its aliases stand for more than {CONTAINERS_MAX:,} values, the limit")
    reader = loader(text)
    try:
        return reader.get_single_data()
    finally:
        reader.dispose()


def gunzip(data: bytes, bytes_max: int) -> bytes:
    """Return gzip data decompressed. Raises OSError for more than `bytes_max` bytes, and for damaged data."""
    with io.BufferedReader(_Unpacked(io.BytesIO(data), "gzip", bytes_max)) as file:
        return file.read()
