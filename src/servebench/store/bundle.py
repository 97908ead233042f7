"""An archive of a stored study for an issue: what was run and its points, without secrets, questions and answers."""

import io
import json
import re
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from servebench.util.bounded_file import open_regular, parse_json
from servebench.util.errors import StoreError, reason_of
from servebench.util.file_redaction import is_clean
from servebench.util.redaction import redact, redact_text

TEXTS = ("*.json", "points.csv", "*.log")
CONTENT = ("requests.parquet", "answers.parquet", "quality.parquet")
LOG_BYTES = 4 << 20
"""What is taken of the end of a longer log."""


def write_bundle(folders: Iterable[Path], out: Path, *, requests: bool) -> int:
    """Write the files of a study's folder and of its runs to a `tar.gz`, and return how many. Texts are redacted, the home folder
    is `~`, and a log that may still hold secrets is left out. Raises StoreError."""
    names = (*TEXTS, *(CONTENT if requests else ()))
    try:
        with tarfile.open(out, "x:gz") as archive:
            for path in sorted(
                path for folder in folders for name in names for path in folder.glob(name) if is_clean(path)
            ):
                data = path.read_bytes() if path.name in CONTENT else _redacted(path)
                entry = tarfile.TarInfo("/".join(path.parts[-3 if (path.parents[1] / "study.json").exists() else -2 :]))
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))
            return len(archive.getnames())
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {reason_of(error)}; --out FILE names another") from error


def _redacted(path: Path) -> bytes:
    with open_regular(path) as file:
        file.seek(max(path.stat().st_size - LOG_BYTES, 0) if path.suffix == ".log" else 0)
        text = file.read().decode(errors="replace")
    with suppress(ValueError):  # a damaged document is redacted as text
        text = json.dumps(redact(parse_json(text)), indent=1) if path.suffix == ".json" else text
    return redact_text(re.sub(re.escape(str(Path.home())) + r"(?=/\w)", "~", text)).encode()
