"""Does an endpoint truly answer? One model list, one real generation. Used by every launcher."""

from __future__ import annotations

import time
from typing import Any

import httpx

from servebench.contracts.engine import Engine
from servebench.contracts.request import Message, Request
from servebench.contracts.settings import WorkloadSettings
from servebench.protocol.answer import FirstContent
from servebench.protocol.errors import error_text
from servebench.protocol.json_values import decode_text
from servebench.util.errors import EngineError, in_one_line

PROBE = Request(request_id="probe", messages=(Message("user", "Say yes."),), output_tokens=8, exact_output=True)
PROBE_AS_TEXT = Request(request_id="probe", prompt="Say yes:", output_tokens=8, exact_output=True)
"""With the output length held, a model whose first token would be its last says something too."""

PROBE_WORKLOAD = WorkloadSettings(name="probe")

FORBIDDEN = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
NO_CHAT = (
    httpx.codes.BAD_REQUEST,
    httpx.codes.NOT_FOUND,
    httpx.codes.METHOD_NOT_ALLOWED,
    httpx.codes.UNPROCESSABLE_ENTITY,
    httpx.codes.NOT_IMPLEMENTED,
)
"""How servers without a chat route, or with a model without a chat template, answer."""

SAID_CHARACTERS = 300
"""How much of a server's own words is kept."""

BEGINNING_CHARACTERS = 120
"""How much is quoted of an answer in which nothing was generated."""

PASSING = (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_EARLY, httpx.codes.TOO_MANY_REQUESTS)
"""Refusals that a server may take back; those from 500 up are too."""


def json_of(response: httpx.Response) -> Any:
    """The JSON of an answer. Raises ValueError for what is none, and for what is nested deeper than can be read."""
    try:
        return response.json()
    except RecursionError as error:
        raise ValueError("the answer is nested too deep") from error


def reason_of(error: httpx.HTTPError) -> str:
    """Why a request failed, in a few lower-case words."""
    cause: BaseException = error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    text = getattr(cause, "strerror", None) or str(cause) or type(error).__name__
    return in_one_line(str(text), SAID_CHARACTERS).lower()


def served_models(http: httpx.Client, base_url: str) -> list[str] | None:
    """The ids that the endpoint lists; None when it has no list. Raises httpx.HTTPError when it cannot be reached."""
    response = http.get(f"{base_url}/models")
    if response.status_code != httpx.codes.OK:
        return None
    try:
        listed: list[dict[str, Any]] = json_of(response)["data"]
        names = [str(model["id"]) for model in listed]
        names += [str(alias) for model in listed for alias in model.get("aliases") or ()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return [in_one_line(name, SAID_CHARACTERS) for name in names] or None


def version_of(http: httpx.Client, root_url: str, engine: Engine) -> str | None:
    """What the server says of its version; None where it has no such path or does not tell. Never raises for that: a
    version is nice to have, and the endpoint has just generated."""
    if engine.version_path is None:
        return None
    try:
        response = http.get(root_url + engine.version_path)
        told = json_of(response)["version"] if response.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    return in_one_line(str(told), SAID_CHARACTERS) if told else None


def generate(http: httpx.Client, base_url: str, engine: Engine, model: str, timeout_s: float) -> None:
    """One real generation in the engine's dialect, by chat, else by completion; done at the first content.

    Raises EngineError when the endpoint answers without content or with an error (kind `not_ready` when it may yet
    change its mind, `unauthorized`, else `other`), httpx.HTTPError when it does not answer.
    """
    deadline = time.monotonic() + timeout_s
    problem: EngineError | None = None
    for probe in (PROBE, PROBE_AS_TEXT):
        found = _try(http, base_url, engine.body(probe, model, PROBE_WORKLOAD), deadline)
        if found is None:
            return
        # what chat says of it comes first: it is what workloads use
        problem = problem or found[0]
        if not found[1]:
            break
    assert problem is not None
    raise problem


def _try(
    http: httpx.Client, base_url: str, request: tuple[str, dict[str, Any]], deadline: float
) -> tuple[EngineError, bool] | None:
    """None when it generates; else what is wrong and whether the other route may do."""
    path, body = request
    url = base_url + path
    left_s = max(1.0, deadline - time.monotonic())
    with http.stream("POST", url, json=body, timeout=httpx.Timeout(left_s, connect=5.0)) as response:
        status = response.status_code
        if status in FORBIDDEN:
            raise EngineError(f"{base_url} refuses the request: {status}", kind="unauthorized")
        if status != httpx.codes.OK:
            response.read()
            passing = status in PASSING or (status >= httpx.codes.INTERNAL_SERVER_ERROR and status not in NO_CHAT)
            problem = EngineError(
                f"{url} answers {status}: {error_text(response.content)}", kind="not_ready" if passing else "other"
            )
            return problem, status in NO_CHAT
        content = FirstContent()
        for data in response.iter_bytes():
            content.feed(data)
            if _has_content(content, url):
                return None
            if time.monotonic() > deadline:
                return EngineError(f"{url} streamed nothing generated in time", kind="not_ready"), False
        content.finish()
        if _has_content(content, url):
            return None
    begins = in_one_line(decode_text(content.beginning[: 8 * BEGINNING_CHARACTERS]), BEGINNING_CHARACTERS)
    answer = f"its answer begins with: {begins}" if begins else "its answer is empty"
    return EngineError(f"{url} answered without generating anything; {answer}"), True


def _has_content(content: FirstContent, url: str) -> bool:
    """Return whether generated content has arrived. Raises EngineError when the answer reports an error."""
    if content.error is not None:
        raise EngineError(f"{url} answers with an error: {content.error}")
    return content.arrived
