"""What a running engine is asked beside requests: to empty its prefix cache, and how it resolved its settings."""

from __future__ import annotations

import time
from typing import Any

import httpx

from servebench.contracts.engine import Engine, RunningEngine
from servebench.engine.supervisor.answers import json_of, reason_of
from servebench.protocol.errors import error_text
from servebench.util.bounded_http import client

RESET_TIMEOUT_S = 10.0
"""vLLM and SGLang refuse while requests still hold blocks; an engine that is idle lets them go within a second."""

RESET_PAUSE_S = 0.2
BYTES_MAX = 2_000_000


def reset_cache(engine: Engine, running: RunningEngine) -> str | None:
    """Have the engine empty its prefix cache. Null when it did, else one line that says why not. Never raises."""
    if engine.reset_path is None:
        return f"{engine.name} has no way to empty its cache"
    deadline = time.monotonic() + RESET_TIMEOUT_S
    with client(running.headers, verify_tls=running.verify_tls, timeout_s=RESET_TIMEOUT_S) as http:
        while True:
            reason = _reset_once(http, engine.reset_path, running)
            if reason is None or time.monotonic() > deadline:
                return reason
            time.sleep(RESET_PAUSE_S)


def _reset_once(http: httpx.Client, path: str, running: RunningEngine) -> str | None:
    try:
        answer = http.post(f"{running.root_url}{path}")
    except httpx.HTTPError as error:
        return f"{path}: {reason_of(error)}"
    if answer.status_code != httpx.codes.OK:
        return f"{path} answers {answer.status_code}: {error_text(answer.content)}"
    try:
        document = json_of(answer)
    except ValueError:
        # SGLang answers with a sentence
        return None
    if isinstance(document, dict) and document.get("success") is False:
        return f"{path} says that it could not"
    return None


def resolved_settings(engine: Engine, running: RunningEngine) -> dict[str, Any] | None:
    """What the engine says of its settings, by path; null when it says nothing. Never raises."""
    found: dict[str, Any] = {}
    if not engine.settings_paths:
        return None
    with client(running.headers, verify_tls=running.verify_tls) as http:
        for path in engine.settings_paths:
            try:
                answer = http.get(f"{running.root_url}{path}")
                if answer.status_code == httpx.codes.OK and len(answer.content) <= BYTES_MAX:
                    found[path] = json_of(answer)
            except (httpx.HTTPError, ValueError):
                continue
    return found or None
