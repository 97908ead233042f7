import shutil
import subprocess
from functools import partial

import pytest

from support.records import record


@pytest.fixture
def make():
    """Return a record; any field may be given."""
    return partial(record, request_id="a", sent_ns=10**18 + 1, text="hi")


def _mounted(folder, *words):
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
def tiny_disk(tmp_path):
    """A file system of 128 KiB."""
    yield from _mounted(tmp_path / "tiny", "-t", "tmpfs", "-o", "size=128k", "none")


@pytest.fixture
def read_only(tmp_path):
    """A folder that nobody can write to, root neither."""
    yield from _mounted(tmp_path / "locked", "-t", "tmpfs", "-o", "ro,size=64k", "none")
