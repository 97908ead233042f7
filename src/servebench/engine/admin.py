"""Administrative requests to a running engine: empty its prefix cache, read its resolved settings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from servebench.contracts.engine import Engine, RunningEngine
from servebench.protocol.errors import error_text

if TYPE_CHECKING:
    import httpx

RESET_TIMEOUT_S = 10.0
"""vLLM and SGLang refuse while requests still hold blocks; an idle engine releases them within a second."""

RESET_PAUSE_S = 0.2
SETTINGS_TIMEOUT_S = 60.0
"""vLLM runs compilers and package managers to describe its system, which takes long on a busy machine."""
BYTES_MAX = 2_000_000


def reset_cache(engine: Engine, running: RunningEngine) -> str | None:
    """Empty the engine's prefix cache. Return None on success, else one line with the reason. Never raises."""
    if engine.reset_path is None:
        return f"{engine.name} cannot empty its cache"
    from servebench.util.bounded_http import client

    deadline = time.monotonic() + RESET_TIMEOUT_S
    with client(running.headers, verify_tls=running.verify_tls, timeout_s=RESET_TIMEOUT_S) as http:
        while True:
            reason = _reset_once(http, engine.reset_path, running)
            if reason is None or time.monotonic() > deadline:
                return reason
            time.sleep(RESET_PAUSE_S)


def _reset_once(http: httpx.Client, path: str, running: RunningEngine) -> str | None:
    import httpx

    from servebench.engine.supervisor.endpoint import http_error_reason, response_json

    try:
        response = http.post(f"{running.root_url}{path}")
    except httpx.HTTPError as error:
        return f"{path}: {http_error_reason(error)}"
    if response.status_code != httpx.codes.OK:
        return f"{path} returned {response.status_code}: {error_text(response.content)}"
    try:
        document = response_json(response)
    except ValueError:
        # SGLang returns a sentence
        return None
    if isinstance(document, dict) and document.get("success") is False:
        return f"{path} reported a failure"
    return None


def resolved_settings(engine: Engine, running: RunningEngine) -> dict[str, Any] | None:
    """Return the settings that the engine reports, by path; None if it reports none. Never raises."""
    if not engine.settings_paths:
        return None
    from servebench.engine.supervisor.endpoint import json_at
    from servebench.util.bounded_http import client

    options: Any = {"verify_tls": running.verify_tls, "timeout_s": SETTINGS_TIMEOUT_S, "bytes_max": BYTES_MAX}
    with client(running.headers, **options) as http:
        found = {path: json_at(http, f"{running.root_url}{path}") for path in engine.settings_paths}
    return {path: settings for path, settings in found.items() if settings is not None} or None
