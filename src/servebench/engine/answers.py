"""Does an endpoint truly answer? One model list, one real generation. Used by every launcher."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

from servebench.contracts.engine import Engine
from servebench.contracts.request import Message, Request
from servebench.contracts.settings import WorkloadSettings
from servebench.errors import EngineError

PROBE = Request(request_id="probe", messages=(Message("user", "Say yes."),), output_tokens=8)
PROBE_AS_TEXT = Request(request_id="probe", prompt="Say yes:", output_tokens=8)
PROBE_WORKLOAD = WorkloadSettings(name="probe")


def client(headers: Sequence[tuple[str, str]], *, verify_tls: bool = True, timeout_s: float = 5.0) -> httpx.Client:
    """An HTTP client for everything off the hot path. It trusts no proxy of the environment: engines are measured directly."""
    return httpx.Client(headers=list(headers), verify=verify_tls, timeout=timeout_s, trust_env=False)


def reason_of(error: httpx.HTTPError) -> str:
    """Why a request failed, in a few lower-case words."""
    cause: BaseException = error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    text = getattr(cause, "strerror", None) or str(cause) or type(error).__name__
    return " ".join(str(text).split()).lower()


def said(response: httpx.Response) -> str:
    """What an error response says, in one line."""
    text = response.text
    try:
        answer = json.loads(text)
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        text = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    except ValueError:
        pass
    return " ".join(text.split())[:300]


def served_models(http: httpx.Client, base_url: str) -> list[str] | None:
    """The ids that the endpoint lists; None when it has no list. Raises httpx.HTTPError when it cannot be reached."""
    response = http.get(f"{base_url}/models")
    if response.status_code != httpx.codes.OK:
        return None
    try:
        listed: list[dict[str, Any]] = response.json()["data"]
        names = [str(model["id"]) for model in listed]
        names += [str(alias) for model in listed for alias in model.get("aliases") or ()]
    except (ValueError, KeyError, TypeError):
        return None
    return names or None


def has_content(data: str) -> bool:
    """Whether an SSE event carries generated content. Raises EngineError when it carries an error."""
    try:
        event = json.loads(data)
    except ValueError:
        return False
    if not isinstance(event, dict):
        return False
    if event.get("error"):
        error = event["error"]
        raise EngineError(str(error.get("message", error) if isinstance(error, dict) else error))
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or choice.get("message") or {}
        if any(delta.get(key) for key in ("content", "reasoning", "reasoning_content", "tool_calls")) or choice.get("text"):
            return True
    return False


def generate(http: httpx.Client, base_url: str, engine: Engine, model: str, timeout_s: float) -> None:
    """One real generation in the engine's dialect, by chat, else by completion.

    Raises EngineError when the endpoint answers without content or with an error, httpx.HTTPError when it does not.
    """
    refused = None
    for probe in (PROBE, PROBE_AS_TEXT):
        path, body = engine.body(probe, model, PROBE_WORKLOAD)
        with http.stream("POST", base_url + path, json=body, timeout=timeout_s) as response:
            if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise EngineError(f"{base_url} refuses the request: {response.status_code}", kind="unauthorized")
            if response.status_code != httpx.codes.OK:
                response.read()
                refused = refused or f"{base_url}{path} answers {response.status_code}: {said(response)}"
                continue
            text = ""
            for line in response.iter_lines():
                text = line[5:].strip() if line.startswith("data:") else line
                if has_content(text):
                    return
            raise EngineError(f"{base_url}{path} answered without generating anything", kind="not_ready")
    raise EngineError(refused or f"{base_url} does not generate", kind="not_ready")
