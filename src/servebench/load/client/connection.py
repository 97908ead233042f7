"""One connection to the server: sends request bytes and takes reads with the kernel's receive stamps.

The stamp (`SO_TIMESTAMPNS`) is a timespec of CLOCK_REALTIME that the kernel wrote when the segment arrived. Where the
kernel gives none, a user-space stamp is taken and the spool says so.
"""

import contextlib
import errno
import os
import resource
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any

from servebench.contracts.exchange import WireOutcome
from servebench.protocol.framing import Framing
from servebench.util.units import NS_PER_S

SO_TIMESTAMPNS: int | None = getattr(socket, "SO_TIMESTAMPNS", 35)
"""35 on Linux for x86-64 and arm64 (asm-generic/socket.h); Python has the name only since 3.14."""

TIMESPEC = struct.Struct("<qq")
"""A stamp of the kernel: seconds and nanoseconds."""

READ_BYTES, READ_BYTES_MAX = 4_096, 65_536
"""The size of one read: a few events, and what a connection gets once that was too small."""

ANCILLARY_BYTES = socket.CMSG_SPACE(TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0

LEVELS = select.EPOLLIN | select.EPOLLRDHUP
EDGES = LEVELS | select.EPOLLET
"""A plain socket is edge-triggered: one read takes everything, so epoll need not look at the socket again. TLS stays
level-triggered, because one read of encrypted bytes can leave some behind."""

Address = tuple[int, Any]
"""A socket family and the address that `connect` takes for it."""

Ancillary = tuple[int, int, bytes]
Receive = Callable[[int, int], tuple[bytes, list[Ancillary], int, Any]]
"""Takes the size of the read and of its ancillary data; raises BlockingIOError when there is nothing to read."""

REFUSED_ERRORS = (ConnectionRefusedError, socket.gaierror, TimeoutError)
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)
"""No descriptor, no local port, no memory: no connection was made."""


class WireFailure(Exception):
    """A connection failed: `outcome` says how, the text says why."""

    def __init__(self, outcome: WireOutcome, message: str) -> None:
        self.outcome = outcome
        super().__init__(message)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one: each stream needs a descriptor, and 1024 is the usual limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def user_stamp() -> bytes:
    """Return the current time in the form of a kernel stamp."""
    return TIMESPEC.pack(*divmod(time.time_ns(), NS_PER_S))


def wire_failure(error: OSError) -> WireFailure:
    """Return an operating system error as a WireFailure."""
    outcome: WireOutcome = "reset"
    if isinstance(error, ssl.SSLError):
        outcome = "tls"
    elif isinstance(error, REFUSED_ERRORS) or error.errno in EXHAUSTED:
        outcome = "refused"
    reason = error.strerror or str(error) or type(error).__name__
    return WireFailure(outcome, reason.lower())


class _HotFields:
    """The fields that every read touches, next to each other: a thousand connections do not fit the CPU caches."""

    __slots__ = ("held", "receive", "room", "usual")


class ClientConnection(_HotFields):
    """A non-blocking, kept-alive connection to the target that carries at most one request at a time.

    `connect_started_ns` and `connected_ns` are CLOCK_REALTIME nanoseconds; with TLS the handshake counts as connecting.
    It can carry requests since `ready_s` (monotonic) and is `fresh` until the first answer is complete. `index` is the request
    that the connection carries, -1 when idle; `kept` holds the answer so far if another request needs it. `held` are the
    reads not yet in the spool, stamp and bytes by turns; `received` counts the bytes that are in the spool. `receive` is the
    socket's `recvmsg` or its replacement, `room` the size of a read. `usual` says that a read of exactly one chunk
    needs no closer look.
    """

    __slots__ = (
        "connect_started_ns",
        "connected_ns",
        "framing",
        "fresh",
        "index",
        "interest",
        "kept",
        "outgoing",
        "ready_s",
        "received",
        "sock",
    )

    def __init__(self, address: Address) -> None:
        """Start to connect. Raises WireFailure."""
        family, where = address
        self.framing = Framing()
        self.index = -1
        self.kept: list[bytes] | None = None
        self.outgoing = memoryview(b"")
        self.received = 0
        self.held: list[bytes] = []
        self.usual = False
        self.room = READ_BYTES
        self.interest = EDGES
        self.fresh = True
        self.ready_s = 0.0
        self.connected_ns = 0
        try:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise wire_failure(error) from error
        try:
            self.sock.setblocking(False)
            if family != socket.AF_UNIX:
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if SO_TIMESTAMPNS is not None:
                with contextlib.suppress(OSError):
                    self.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self.receive: Receive = self.sock.recvmsg
            self.connect_started_ns = time.time_ns()
            with contextlib.suppress(BlockingIOError):
                self.sock.connect(where)
        except OSError as error:
            self.sock.close()
            raise wire_failure(error) from error

    def finish_connecting(self) -> bool:
        """Go on connecting when the socket is ready; return True once requests can be sent. Raises WireFailure."""
        self._check_connected()
        self.connected_ns = time.time_ns()
        return True

    def _check_connected(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise wire_failure(OSError(code, os.strerror(code)))

    def send(self, data: bytes) -> int:
        """Hand a request to the kernel and return when, in nanoseconds, its first byte was handed over. Raises WireFailure. Bytes
        that the kernel does not take at once stay in `outgoing` for `flush`."""
        self.received = 0
        self.usual = False
        self.framing.reset()
        self.outgoing = memoryview(data)
        sent_ns = time.time_ns()
        self.flush()
        return sent_ns

    def flush(self) -> None:
        """Send the rest of the request. Raises WireFailure."""
        try:
            while self.outgoing:
                self.outgoing = self.outgoing[self.sock.send(self.outgoing) :]
        except BlockingIOError:
            return
        except OSError as error:
            raise wire_failure(error) from error

    def survives_idle_event(self) -> bool:
        """Return whether the connection can be used after an event without a request: HTTP has nothing to say then."""
        return False

    def close(self) -> None:
        """Close the socket; bytes on their way are lost."""
        self.sock.close()


class TlsConnection(ClientConnection):
    """A ClientConnection through TLS: stamps belong to the encrypted bytes, decryption goes through a memory BIO."""

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
