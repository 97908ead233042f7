"""Streamed answers of the scripted server, and what the load client made of them."""

import socket
import time
from collections import Counter
from collections.abc import Mapping

from servebench.contracts.exchange import Exchange
from support.servers import LAST_CHUNK, SSE_HEAD, Received, Script, ScriptedServer, chunk, content_event


def stream(words: int = 3) -> bytes:
    """Return a whole streamed answer."""
    return SSE_HEAD + b"".join(content_event(f"w{i} ") for i in range(words)) + chunk(b"data: [DONE]\n\n") + LAST_CHUNK


def answer(connection: socket.socket, request: Received) -> None:
    """Answer with a whole stream: a script of the server."""
    connection.sendall(stream())


def answer_after(seconds: float) -> Script:
    """Return a script that answers after a time."""
    return lambda connection, request: time.sleep(seconds) or connection.sendall(stream())


def outcomes(exchanges: Mapping[str, Exchange]) -> Counter[str]:
    return Counter(exchange.outcome for exchange in exchanges.values())


def body(exchange: Exchange) -> bytes:
    return b"".join(data for _, data in exchange.reads)


def sent_ids(server: ScriptedServer) -> list[str]:
    return [request.json()["id"] for request in server.requests]
