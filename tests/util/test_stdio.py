"""The reader of a command's output may go away: no study ends because of it, and what cannot be printed is one line."""

import errno
import io
import subprocess
import sys
from pathlib import Path

import pytest

from servebench.util.stdio import best_effort

FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
SAY = "import sys; from servebench.util.stdio import best_effort, prepare_streams; prepare_streams(); "


def shell(line, program):
    """What a shell's line gives in which $P stands for a Python program."""
    done = subprocess.run(
        ["/bin/sh", "-c", line.replace("$P", '"$0" -c "$1"'), sys.executable, program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
@FULL
def test_what_cannot_be_told_ends_nothing(redirected):
    """Neither while it is written nor when Python ends, which tries once more and would end with 120."""
    program = (
        SAY + "out = best_effort(sys.stdout)\nfor _ in range(3): print('x' * 9000, file=sys.stderr); print(1, file=out)"
    )
    code, _, _ = shell(f"$P {redirected}", program)
    assert code == 0


def test_closed_descriptors_are_taken_by_nothing_else(tmp_path):
    """A file that is opened next would be standard output, and hold what is told."""
    program = (
        SAY + f"file = open({str(tmp_path / 'f')!r}, 'w'); print('told'); print('told', file=sys.stderr); file.close()"
    )
    assert shell("$P <&- >&- 2>&-", program)[0] == 0
    assert (tmp_path / "f").read_text() == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_lacks_is_replaced(monkeypatch, encoding):
    """On standard error it would silence all that follows."""
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    kept = "─".encode(encoding, "replace").decode(encoding)
    program = SAY + "[print(text, file=file) for file in (sys.stdout, sys.stderr) for text in ('\\u2500', 'next')]"
    assert shell("$P", program) == (0, f"{kept}\nnext\n", f"{kept}\nnext\n")


@pytest.mark.slow
@FULL
@pytest.mark.parametrize("words", [["ls", "--json"], ["help"], ["plugins"]])
def test_output_that_finds_no_room_is_one_line(tmp_path, words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "servebench", *words],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.stderr == "servebench: cannot write to standard output: the disk is full\n"
    assert done.returncode == 6


def test_a_stream_that_others_replaced_keeps_its_descriptor(tmp_path):
    """Its descriptor may be a file of a test's runner, which reads from it afterwards."""

    class Full(io.TextIOWrapper):
        def write(self, text):
            raise OSError(errno.ENOSPC, "no space")

    with (tmp_path / "captured").open("wb") as file:
        stream = Full(file)
        best_effort(stream).write("lost")
        stream.detach().write(b"kept")
    assert (tmp_path / "captured").read_bytes() == b"kept"
