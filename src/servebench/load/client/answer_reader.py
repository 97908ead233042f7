"""Reads answers for a worker whose requests need them: a process of its own, so that no stream waits while one is parsed.

    python -m servebench.load.client.answer_reader MODULE:FUNCTION

The worker sends frames on standard input (index, whole or not, how many reads, how long each is, their bytes: an HTTP
response); for each comes one back on standard output (index, whether there is a text, length, the text as inside a JSON string,
else the reason). What an answer looks like only the function knows that the plan names.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pkgutil
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import BinaryIO

import orjson

from servebench.util.signals import leave_stopping_to_the_parent

FRAME = struct.Struct("<IBI")
PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 16
STARTED = struct.Struct("<d")
"""What is said first, once the function is there: the CPU time that this took, in seconds."""

END_TIMEOUT_S = 5.0

ReadText = Callable[..., str]


def asked(index: int, reads: Sequence[bytes], *, whole: bool) -> bytes:
    """The frame that asks for the text of one response."""
    count = len(reads)
    return b"".join([FRAME.pack(index, whole, count), struct.pack(f"<{count}I", *map(len, reads)), *reads])


def answered(read: ReadText, index: int, whole: bool, reads: Sequence[bytes]) -> bytes:
    """The frame that goes back for one response."""
    try:
        text = orjson.dumps(read(reads, whole=whole))[1:-1]
        fine = True
    except ValueError as error:
        text, fine = str(error).encode(), False
    return FRAME.pack(index, fine, len(text)) + text


def main(words: list[str]) -> int:
    """Answer until the input ends."""
    leave_stopping_to_the_parent()
    with contextlib.suppress(OSError):
        # the worker's priority is for stamping; a prompt may come a moment later
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    read: ReadText = pkgutil.resolve_name(words[0])
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(BrokenPipeError):
        # broken when the worker is gone, and nobody wants a text any more
        _send(sink, STARTED.pack(time.process_time()))
        _serve(read, source, sink)
    return 0


def _serve(read: ReadText, source: BinaryIO, sink: BinaryIO) -> None:
    while len(head := source.read(FRAME.size)) == FRAME.size:
        index, whole, count = FRAME.unpack(head)
        lengths = source.read(4 * count)
        if len(lengths) < 4 * count:
            break
        sizes = struct.unpack(f"<{count}I", lengths)
        response = source.read(sum(sizes))
        ends = list(accumulate(sizes))
        if ends and len(response) < ends[-1]:
            break
        reads = [response[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        _send(sink, answered(read, index, bool(whole), reads))


def _send(sink: BinaryIO, frame: bytes) -> None:
    sink.write(frame)
    sink.flush()


class AnswerReader:
    """The worker's end: neither `ask` nor `texts` ever waits. `output` is the descriptor to poll for answers."""

    def __init__(self, name: str) -> None:
        """Start the process for the function of this name and wait until it is there. Raises OSError."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "servebench.load.client.answer_reader", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin.fileno()
        self.output = self._process.stdout.fileno()
        self._outgoing: deque[memoryview] = deque()
        self._came = bytearray()
        said = os.read(self.output, STARTED.size)
        if len(said) < STARTED.size:
            self.close()
            raise OSError(f"the reader of answers ({name}) did not start")
        (self.start_cpu_s,) = STARTED.unpack(said)
        for descriptor in (self._input, self.output):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def ask(self, index: int, reads: Sequence[bytes], *, whole: bool) -> None:
        """Have an answer read. Raises OSError when the process is gone."""
        self._outgoing.append(memoryview(asked(index, reads, whole=whole)))
        self.flush()

    def flush(self) -> None:
        """Give it what its pipe takes. Raises OSError when the process is gone."""
        with contextlib.suppress(BlockingIOError):
            while self._outgoing:
                rest = self._outgoing[0]
                rest = rest[os.write(self._input, rest) :]
                if rest:
                    self._outgoing[0] = rest
                else:
                    self._outgoing.popleft()

    def texts(self) -> Iterator[tuple[int, bool, bytes]]:
        """What has come: index, whether there is a text, and the text or the reason. Raises OSError when it is gone."""
        try:
            part = os.read(self.output, READ_BYTES)
        except BlockingIOError:
            return
        if not part:
            raise BrokenPipeError("the reader of answers died")
        self._came += part
        while len(self._came) >= FRAME.size:
            index, fine, length = FRAME.unpack_from(self._came)
            end = FRAME.size + length
            if len(self._came) < end:
                return
            text = bytes(self._came[FRAME.size : end])
            del self._came[:end]
            yield index, bool(fine), text

    def close(self) -> None:
        """End the process; its CPU time is then among that of the children."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
