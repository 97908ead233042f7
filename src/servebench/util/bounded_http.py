"""An HTTP client with a deadline and a size limit for each exchange, whatever the server sends.

The timeouts of a library are those of one read: a server that sends a byte now and then, interim responses without end
or a body without end keeps it busy for ever. Here the bytes are counted and the clock is read where they arrive.
"""

import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpcore
import httpx

from servebench.util.tls import Trust, tls_context

BYTES_MAX = 16 << 20
"""More than any answer to a question of ours: metrics and model lists are below a megabyte, the token ids of a prompt of
a million tokens below eight."""
DEADLINE_S = 600.0
"""For an exchange that was asked without a timeout."""

Headers = Sequence[tuple[str, str]]


def client(
    headers: Headers,
    *,
    query: Headers = (),
    verify_tls: Trust = True,
    timeout_s: float = 5.0,
    bytes_max: int = BYTES_MAX,
) -> httpx.Client:
    """Return an HTTP client for all off the hot path. It trusts no proxy of the environment (engines are measured directly), and
    follows no redirect.

    `timeout_s`, or the read timeout of a single request, is for the whole exchange, the body included; `bytes_max` for all that
    the server sends in it. What goes beyond, and a body that is encoded though that was not asked for, is an
    httpx.HTTPError with the reason.
    """
    return httpx.Client(
        headers=[("Accept-Encoding", "identity"), *headers],
        params=dict(query) or None,
        timeout=timeout_s,
        trust_env=False,
        transport=_Transport(verify_tls, bytes_max),
    )


class _Budget(threading.local):
    """The time and bytes left to an exchange, for each thread: several may use a client."""

    deadline = seconds = 0.0
    left = total = 0

    def begin(self, seconds: float, total: int) -> None:
        self.deadline = time.monotonic() + seconds
        self.seconds, self.left, self.total = seconds, total, total

    def seconds_left(self, asked_s: float | None) -> float:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise httpcore.ReadTimeout(f"no whole answer within {self.seconds:g} s")
        return left_s if asked_s is None else min(left_s, asked_s)

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise httpcore.ReadError(f"the answer is longer than {self.total} bytes")


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, budget: _Budget, verify_tls: Trust) -> None:
        self._stream = stream
        self._budget = budget
        self._verify_tls = verify_tls

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            data = self._stream.read(max_bytes, self._budget.seconds_left(timeout))
        except httpcore.ReadTimeout:
            self._budget.seconds_left(None)
            raise
        self._budget.take(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._budget.seconds_left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        # certificates are read here and not for each client: that takes 30 ms, and most engines are reached without TLS
        context = tls_context(self._verify_tls)
        context.set_alpn_protocols(["http/1.1"])
        stream = self._stream.start_tls(context, server_hostname, self._budget.seconds_left(timeout))
        return _Stream(stream, self._budget, self._verify_tls)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.SyncBackend):
    def __init__(self, budget: _Budget, verify_tls: Trust) -> None:
        self._budget = budget
        self._verify_tls = verify_tls

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *more: Any, **options: Any
    ) -> httpcore.NetworkStream:
        stream = super().connect_tcp(host, port, self._budget.seconds_left(timeout), *more, **options)
        return _Stream(stream, self._budget, self._verify_tls)


class _Transport(httpx.HTTPTransport):
    """httpx's own transport over connections that count."""

    def __init__(self, verify_tls: Trust, bytes_max: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        super().__init__(verify=context, trust_env=False)
        self._budget = _Budget()
        self._bytes_max = bytes_max
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_Backend(self._budget, verify_tls),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        asked_s = request.extensions.get("timeout", {}).get("read")
        self._budget.begin(DEADLINE_S if asked_s is None else float(asked_s), self._bytes_max)
        response = super().handle_request(request)
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() not in ("", "identity"):
            response.close()
            raise httpx.DecodingError(f"the answer is encoded as {encoding[:40]!r}, which was not asked for")
        return response
