"""Streamed answers of the scripted server."""

from support.servers import LAST_CHUNK, SSE_HEAD, ScriptedServer, chunk, content_event


def stream(words: int = 3) -> bytes:
    """Return a whole streamed answer."""
    return SSE_HEAD + b"".join(content_event(f"w{i} ") for i in range(words)) + chunk(b"data: [DONE]\n\n") + LAST_CHUNK


def sent_ids(server: ScriptedServer) -> list[str]:
    return [request.json()["id"] for request in server.requests]
