"""A connection through TLS: stamps belong to the encrypted bytes, decryption goes through a memory BIO."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Any

from servebench.load.client.connection import (
    ANCILLARY_BYTES,
    LEVELS,
    READ_BYTES_MAX,
    Address,
    Ancillary,
    ClientConnection,
    WireFailure,
    wire_failure,
)


class TlsConnection(ClientConnection):
    """A ClientConnection whose bytes are encrypted."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "_tls_rest")

    def __init__(self, address: Address, context: ssl.SSLContext, server_name: str) -> None:
        """Start to connect; the handshake follows in `finish_connecting`. Raises WireFailure."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._tls_rest = memoryview(b"")
        super().__init__(address)
        self.room = READ_BYTES_MAX
        self.interest = LEVELS
        self.receive = self._receive_decrypted

    def finish_connecting(self) -> bool:
        """Take one step of the handshake; return True when it is done. Raises WireFailure."""
        self._check_connected()
        try:
            with contextlib.suppress(BlockingIOError):
                encrypted = self.sock.recv(self.room)
                if not encrypted:
                    raise WireFailure("tls", "the server closed during the TLS handshake")
                self._incoming.write(encrypted)
        except OSError as error:
            raise wire_failure(error) from error
        done = False
        try:
            self._tls.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise WireFailure("tls", _tls_reason(error)) from error
        self._push()
        if done:
            self.connected_ns = time.time_ns()
        return done

    def send(self, data: bytes) -> int:
        """Encrypt a request and hand it to the kernel; return when its first encrypted byte was. Raises WireFailure."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise WireFailure("tls", _tls_reason(error)) from error
        encrypted = bytes(self._tls_rest) + self._outgoing.read()
        self._tls_rest = memoryview(b"")
        return super().send(encrypted)

    def _receive_decrypted(self, room: int, ancillary_bytes: int) -> tuple[bytes, list[Ancillary], int, Any]:
        """Return what `recvmsg` would, decrypted. Raises BlockingIOError for an incomplete TLS record, WireFailure."""
        encrypted, ancillary, flags, address = self.sock.recvmsg(room, ancillary_bytes)
        if not encrypted:
            return encrypted, ancillary, flags, address
        self._incoming.write(encrypted)
        parts = []
        closed = True
        try:
            # an empty part is the end
            while part := self._tls.read(READ_BYTES_MAX):
                parts.append(part)
        except ssl.SSLWantReadError:
            closed = False
        except ssl.SSLError as error:
            raise WireFailure("tls", _tls_reason(error)) from error
        if closed:
            # the server may leave the TCP connection open: the next read must see the end
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RD)
        else:
            self._push()
            if not parts:
                raise BlockingIOError
        return b"".join(parts), ancillary, flags, address

    def survives_idle_event(self) -> bool:
        """Take messages of TLS itself (tickets, key updates), which a server may send at any time."""
        try:
            self._receive_decrypted(self.room, ANCILLARY_BYTES)
        except BlockingIOError:
            return True
        except (WireFailure, OSError):
            return False
        return False

    def _push(self) -> None:
        """Send the messages of TLS itself (handshake, key update, tickets)."""
        if self.outgoing:
            return
        self._tls_rest = memoryview(bytes(self._tls_rest) + self._outgoing.read())
        try:
            while self._tls_rest:
                self._tls_rest = self._tls_rest[self.sock.send(self._tls_rest) :]
        except BlockingIOError:
            return
        except OSError as error:
            raise wire_failure(error) from error


def _tls_reason(error: ssl.SSLError) -> str:
    reason = getattr(error, "verify_message", "") or error.reason or "the server broke the protocol"
    return f"tls: {reason.lower().replace('_', ' ')}"
