"""Reads answers whose text other requests need, in a process of its own, so that no stream waits while one is parsed.

    python -m servebench.load.client.answer_reader MODULE:FUNCTION [WORD ...]

The worker sends frames on standard input (index, complete or not, number of reads, length of each, their bytes: an HTTP
response). For each, one frame comes back on standard output (index, whether there is a text, length, and the text as inside
a JSON string, else the reason). Only the function named in the plan knows the format of an answer.
"""

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

from servebench.util.signals import end_by_closing, leave_stopping_to_the_parent

FRAME = struct.Struct("<IBI")
PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 16
STARTED = struct.Struct("<d")
"""The first message, once the function is loaded: the CPU time of loading it, in seconds."""

END_TIMEOUT_S = 5.0

ReadText = Callable[..., str]


def encode_response(index: int, reads: Sequence[bytes], *, whole: bool) -> bytes:
    """Return the frame of one response whose text is needed."""
    count = len(reads)
    return b"".join([FRAME.pack(index, whole, count), struct.pack(f"<{count}I", *map(len, reads)), *reads])


def encode_text(read: ReadText, index: int, whole: bool, reads: Sequence[bytes]) -> bytes:
    """Read one response and return the frame of its text, or of the reason why it has none."""
    try:
        text = orjson.dumps(read(reads, whole=whole))[1:-1]
        ok = True
    except ValueError as error:
        text, ok = str(error).encode(), False
    return FRAME.pack(index, ok, len(text)) + text


def main(arguments: list[str]) -> int:
    """Read responses until standard input ends."""
    leave_stopping_to_the_parent()
    with contextlib.suppress(OSError):
        # the worker has its priority for exact stamps; a text may come a moment later
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    function: ReadText = pkgutil.resolve_name(arguments[0])

    def read(reads: Sequence[bytes], *, whole: bool) -> str:
        return function(reads, *arguments[1:], whole=whole)

    source, sink = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(BrokenPipeError):
        # broken when the worker is gone, and nothing needs a text any more
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
        _send(sink, encode_text(read, index, bool(whole), reads))


def _send(sink: BinaryIO, frame: bytes) -> None:
    sink.write(frame)
    sink.flush()


class AnswerReader:
    """The worker's end of the process. Neither `ask` nor `texts` blocks. `output` is the descriptor to poll for texts."""

    def __init__(self, name: str) -> None:
        """Start the process for a function, named as in `PointPlan.reader`, and wait until it is loaded. Raises OSError."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "servebench.load.client.answer_reader", *name.split()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin.fileno()
        self.output = self._process.stdout.fileno()
        self._outgoing: deque[memoryview] = deque()
        self._received = bytearray()
        started = os.read(self.output, STARTED.size)
        if len(started) < STARTED.size:
            self.close()
            raise OSError(f"the process that reads answers ({name}) did not start")
        (self.start_cpu_s,) = STARTED.unpack(started)
        for descriptor in (self._input, self.output):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def ask(self, index: int, reads: Sequence[bytes], *, whole: bool) -> None:
        """Send a response to be read. Raises OSError when the process is gone."""
        self._outgoing.append(memoryview(encode_response(index, reads, whole=whole)))
        self.flush()

    def flush(self) -> None:
        """Send what the pipe takes. Raises OSError when the process is gone."""
        with contextlib.suppress(BlockingIOError):
            while self._outgoing:
                rest = self._outgoing[0]
                rest = rest[os.write(self._input, rest) :]
                if rest:
                    self._outgoing[0] = rest
                else:
                    self._outgoing.popleft()

    def texts(self) -> Iterator[tuple[int, bool, bytes]]:
        """Yield what has come: index, whether there is a text, and the text or the reason. Raises OSError when it is gone."""
        try:
            part = os.read(self.output, READ_BYTES)
        except BlockingIOError:
            return
        if not part:
            raise BrokenPipeError("the process that reads answers died")
        self._received += part
        while len(self._received) >= FRAME.size:
            index, ok, length = FRAME.unpack_from(self._received)
            end = FRAME.size + length
            if len(self._received) < end:
                return
            text = bytes(self._received[FRAME.size : end])
            del self._received[:end]
            yield index, bool(ok), text

    def close(self) -> None:
        """End the process; its CPU time then counts among that of the children."""
        end_by_closing(self._process, END_TIMEOUT_S)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
