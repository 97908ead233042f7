"""Writes the spool of a worker."""

from typing import BinaryIO

from servebench.contracts.exchange import WireOutcome
from servebench.load.client.connection import ClientConnection
from servebench.load.client.spool import end_frame, reads_frame


class SpoolWriter:
    """Collects frames in `buffer` and appends them to the spool. `urgent` says that the buffer must not wait any longer."""

    __slots__ = ("_file", "buffer", "urgent")

    def __init__(self, file: BinaryIO) -> None:
        """Write to an unbuffered file."""
        self._file = file
        self.buffer = bytearray()
        self.urgent = False

    def write_held(self, connection: ClientConnection) -> None:
        """Write the reads that a connection holds."""
        held = connection.held
        if held:
            parts = held[1::2]
            self.buffer += reads_frame(connection.index, held[::2], parts)
            connection.received += sum(map(len, parts))
            held.clear()

    def write_user_read(self, connection: ClientConnection, stamp: bytes, data: bytes) -> None:
        """Write a read whose stamp was taken in user space."""
        self.buffer += reads_frame(connection.index, [stamp], [data], user=True)
        connection.received += len(data)

    def write_end(self, index: int, ended_ns: int, outcome: WireOutcome, error: str) -> None:
        """Write that a request ended."""
        self.buffer += end_frame(index, ended_ns, outcome, error)
        self.urgent = True

    def flush(self) -> None:
        """Append the buffer to the file. Raises OSError."""
        rest = memoryview(self.buffer)
        while rest:
            rest = rest[self._file.write(rest) :]
        rest.release()
        self.buffer.clear()
        self.urgent = False
