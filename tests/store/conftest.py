import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from servebench.contracts.results import Record


@pytest.fixture
def make() -> Callable[..., Record]:
    """Builds a record; any field may be given."""

    def build(**changes: Any) -> Record:
        values: dict[str, Any] = {
            "run_id": "s/00", "point": "c1-r0", "request_id": "a", "session_id": None, "warmup": False,
            "scheduled_ns": 10**18, "connect_started_ns": None, "connected_ns": None, "sent_ns": 10**18 + 1,
            "first_event_ns": 10**18 + 2, "first_output_ns": 10**18 + 2, "last_event_ns": 10**18 + 3,
            "ended_ns": 10**18 + 4, "event_ns": [10**18 + 2, 10**18 + 3], "event_tokens": None, "reads_merged": 0,
            "prompt_tokens": 10, "planned_prompt_tokens": None, "cached_tokens": None, "reasoning_tokens": None,
            "output_tokens": 2, "asked_output_tokens": None, "counted_by": "usage", "finish_reason": "stop",
            "outcome": "ok", "http_status": 200, "error": None, "stamp_source": "kernel", "text": "hi",
        }  # fmt: skip
        return Record(**(values | changes))

    return build


def _mounted(folder: Path, *words: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    if subprocess.run(["mount", *words, str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    yield from _mounted(tmp_path / "tiny", "-t", "tmpfs", "-o", "size=128k", "none")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that nobody can write to, root neither."""
    yield from _mounted(tmp_path / "locked", "-t", "tmpfs", "-o", "ro,size=64k", "none")
