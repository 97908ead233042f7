"""Sockets and stamps, and nothing else.

A `Connection` sends request bytes and takes reads with the kernel's receive stamp (`SO_TIMESTAMPNS`, a timespec of
CLOCK_REALTIME that the kernel wrote when the segment arrived). Where the kernel gives none, a user-space stamp is taken
and the frame says so. Under TLS the stamp belongs to the encrypted bytes and decryption goes through a memory BIO.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from servebench.contracts.exchange import Target, WireOutcome
from servebench.load.client.spool import TIMESPEC
from servebench.protocol.framing import Framing
from servebench.util.units import NS_PER_S

SO_TIMESTAMPNS: int | None = getattr(socket, "SO_TIMESTAMPNS", 35)
"""35 on Linux for x86-64 and arm64 (asm-generic/socket.h); Python names it only from 3.14 on."""

READ_BYTES, READ_BYTES_MAX = 4_096, 65_536
"""Room for one read: some events, and what is used of a connection on which that was not enough."""

ANCILLARY_BYTES = socket.CMSG_SPACE(TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0

LEVELS = select.EPOLLIN | select.EPOLLRDHUP
EDGES = LEVELS | select.EPOLLET
"""A plain socket is told of when something came, and not again until more does: one read takes all that is there. Within TLS
a read can leave some."""

PROBE_TIMEOUT_S = 2.0

Address = tuple[int, Any]
"""A socket family and what `connect` takes for it."""

Ancillary = tuple[int, int, bytes]
Receive = Callable[[int, int], tuple[bytes, list[Ancillary], int, Any]]
"""Takes room for bytes and for ancillary data; raises BlockingIOError when there is nothing."""

RESET_ERRORS = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError)

OUT_OF_MEANS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)
"""No descriptor, no local port, no memory: no connection was made."""


class WireFailure(Exception):
    """A connection failed; `outcome` says how, the text why."""

    def __init__(self, outcome: WireOutcome, message: str) -> None:
        self.outcome = outcome
        super().__init__(message)


def raise_descriptor_limit() -> None:
    """A stream is a descriptor, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def user_stamp() -> bytes:
    """Now, in the form of the kernel's stamp."""
    return TIMESPEC.pack(*divmod(time.time_ns(), NS_PER_S))


def failure_of(error: OSError) -> WireFailure:
    """An operating system's error as an outcome."""
    outcome: WireOutcome = "reset"
    if isinstance(error, ssl.SSLError):
        outcome = "tls"
    elif isinstance(error, ConnectionRefusedError):
        outcome = "refused"
    elif not isinstance(error, RESET_ERRORS):
        local = isinstance(error, (socket.gaierror, TimeoutError)) or error.errno in OUT_OF_MEANS
        outcome = "refused" if local else "reset"
    reason = error.strerror or str(error) or type(error).__name__
    return WireFailure(outcome, reason.lower())


class _Often:
    """What is touched with each read stands together: a thousand connections do not fit the processor's caches."""

    __slots__ = ("held", "receive", "room", "usual")


class Connection(_Often):
    """A connection to the target: non-blocking, kept alive, at most one request at a time.

    `connect_started_ns` and `connected_ns` are CLOCK_REALTIME nanoseconds; with TLS the handshake is part of connecting.
    `index` is the request that it carries, -1 when idle; `kept` its answer so far where that is needed again. `held` are reads
    that are in no spool yet, stamp and bytes by turns; `received` counts the bytes of those that are. `room` is how many bytes a
    read may bring. `usual` says that one which is a whole chunk needs no closer look. `receive` is `recvmsg` of the socket, or
    what stands for it.
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
        "received",
        "sequence",
        "sock",
    )

    def __init__(self, address: Address) -> None:
        """Begin to connect. Raises WireFailure."""
        family, where = address
        self.framing = Framing()
        self.index = -1
        self.kept: list[bytes] | None = None
        self.sequence = 0
        self.outgoing = memoryview(b"")
        self.received = 0
        self.held: list[bytes] = []
        self.usual = False
        self.room = READ_BYTES
        self.interest = EDGES
        self.fresh = True
        self.connected_ns = 0
        try:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise failure_of(error) from error
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
            raise failure_of(error) from error

    def finish_connecting(self) -> bool:
        """Called when the socket is ready; True once requests can be sent. Raises WireFailure."""
        self._check_connected()
        self.connected_ns = time.time_ns()
        return True

    def _check_connected(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise failure_of(OSError(code, os.strerror(code)))

    def send(self, data: bytes) -> int:
        """Hand a request to the kernel; returns when its first byte was, in nanoseconds. Raises WireFailure.

        What the kernel does not take at once stays in `outgoing` for `flush`.
        """
        self.received = 0
        self.usual = False
        self.framing.reset()
        self.outgoing = memoryview(data)
        sent_ns = time.time_ns()
        self.flush()
        return sent_ns

    def flush(self) -> None:
        """Send what is left of the request. Raises WireFailure."""
        try:
            while self.outgoing:
                self.outgoing = self.outgoing[self.sock.send(self.outgoing) :]
        except BlockingIOError:
            return
        except OSError as error:
            raise failure_of(error) from error

    def close(self) -> None:
        """Close the socket; what is in flight is lost."""
        self.sock.close()


class TlsConnection(Connection):
    """The same through TLS: stamps are those of the encrypted bytes."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "_tls_rest")

    def __init__(self, address: Address, context: ssl.SSLContext, server_name: str) -> None:
        """Begin to connect; the handshake follows in `finish_connecting`. Raises WireFailure."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._tls_rest = memoryview(b"")
        super().__init__(address)
        self.room = READ_BYTES_MAX
        self.interest = LEVELS
        self.receive = self._decrypted

    def finish_connecting(self) -> bool:
        """One step of the handshake; True when it is done. Raises WireFailure."""
        self._check_connected()
        try:
            with contextlib.suppress(BlockingIOError):
                encrypted = self.sock.recv(self.room)
                if not encrypted:
                    raise WireFailure("tls", "the server closed during the TLS handshake")
                self._incoming.write(encrypted)
        except OSError as error:
            raise failure_of(error) from error
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
        """Encrypt, then hand to the kernel; the stamp is that of the first encrypted byte. Raises WireFailure."""
        self._tls.write(data)
        encrypted = bytes(self._tls_rest) + self._outgoing.read()
        self._tls_rest = memoryview(b"")
        return super().send(encrypted)

    def _decrypted(self, room: int, ancillary_bytes: int) -> tuple[bytes, list[Ancillary], int, Any]:
        """What `recvmsg` gives, decrypted. A read that completes no TLS record is none yet. Raises WireFailure."""
        encrypted, ancillary, flags, address = self.sock.recvmsg(room, ancillary_bytes)
        if not encrypted:
            return encrypted, ancillary, flags, address
        self._incoming.write(encrypted)
        parts = []
        closed = False
        try:
            while part := self._tls.read(READ_BYTES_MAX):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            closed = True
        except ssl.SSLError as error:
            raise WireFailure("tls", _tls_reason(error)) from error
        if not closed:
            self._push()
            if not parts:
                raise BlockingIOError
        return b"".join(parts), ancillary, flags, address

    def _push(self) -> None:
        """Send what TLS itself wants to say (handshake, key update, tickets)."""
        if self.outgoing:
            return
        self._tls_rest = memoryview(bytes(self._tls_rest) + self._outgoing.read())
        try:
            while self._tls_rest:
                self._tls_rest = self._tls_rest[self.sock.send(self._tls_rest) :]
        except BlockingIOError:
            return
        except OSError as error:
            raise failure_of(error) from error


def _tls_reason(error: ssl.SSLError) -> str:
    reason = getattr(error, "verify_message", "") or error.reason or str(error)
    return f"tls: {reason.lower().replace('_', ' ')}"


class Dialer:
    """Opens connections to one target: the name is resolved once, before the clock starts."""

    def __init__(self, target: Target) -> None:
        """Resolve the target. Raises WireFailure when the name is unknown."""
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise WireFailure("refused", f"cannot resolve {target.host}: {error.strerror or error}".lower()) from error
        self._address = _first_that_answers([(family, where) for family, _, _, _, where in found])
        self._context: ssl.SSLContext | None = None
        self._server_name = target.server_name or target.host
        if target.tls:
            self._context = ssl.create_default_context()
            if not target.verify_tls:
                self._context.check_hostname = False
                self._context.verify_mode = ssl.CERT_NONE

    def open(self) -> Connection:
        """A connection that has begun to connect. Raises WireFailure."""
        if self._context is None:
            return Connection(self._address)
        return TlsConnection(self._address, self._context, self._server_name)


def _first_that_answers(addresses: list[Address]) -> Address:
    """A name can stand for several addresses (`localhost` for ::1 and 127.0.0.1) of which one is listened on."""
    for family, where in addresses:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_TIMEOUT_S)
            try:
                probe.connect(where)
            except OSError:
                continue
            return family, where
    return addresses[0]
