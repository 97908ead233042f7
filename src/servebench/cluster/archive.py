"""A run's folder as a tar archive, for machines that do not share the study's disk."""

import io
import tarfile
from pathlib import Path

from servebench.cluster.heartbeat import FILE
from servebench.util.errors import StoreError


def pack_run(run: Path) -> bytes:
    """Return a run's folder as a compressed archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", compresslevel=1) as archive:
        archive.add(run, arcname="", filter=lambda member: None if Path(member.name).name == FILE else member)
    return data.getvalue()


def unpack_run(files: bytes, run: Path) -> None:
    """Write the files of an archive into a run's folder. Raises StoreError."""
    try:
        with tarfile.open(fileobj=io.BytesIO(files), mode="r:gz") as archive:
            archive.extractall(run, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise StoreError(f"cannot write the files of {run.name} to {run}: {error}") from error
