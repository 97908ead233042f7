"""The launcher `attach`: measures a server that somebody else started, and leaves it alone."""

from __future__ import annotations

import difflib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from servebench.contracts.engine import (
    Command,
    Engine,
    LaunchContext,
    Launcher,
    RunningEngine,
    Say,
    StartPhase,
    StopReport,
)
from servebench.contracts.settings import LaunchSettings
from servebench.engine.supervisor.answers import FORBIDDEN, generate, reason_of, served_models, version_of
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError

CONNECT_TIMEOUT_S = 5.0
GENERATE_TIMEOUT_S = 120.0
ROUTES = ("/chat/completions", "/completions", "/models")


@dataclass(frozen=True, kw_only=True)
class AttachSettings(LaunchSettings):
    """`base_url` ends in `/v1`. `api_key_env` names the environment variable that holds the key; keys stand in no config.
    `verify_tls` may be turned off for a server with a certificate of its own making."""

    base_url: str | None = None
    api_key_env: str | None = None
    verify_tls: bool = True


@dataclass(kw_only=True)
class AttachedEngine:
    """A RunningEngine that is not ours."""

    base_url: str
    root_url: str
    model: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    verify_tls: bool
    started_ns: int
    phases: tuple[StartPhase, ...] = ()
    version: str | None = None
    pid: int | None = None
    command: Command | None = None
    log_path: Path | None = None

    def died(self) -> str | None:
        """Not ours to know: its requests will tell."""
        return None

    def stop(self) -> StopReport:
        """It was not started here and is not stopped here."""
        return StopReport(stopped=False, forced=False, seconds=0.0)


def _url_fault(base_url: str | None) -> str | None:
    advice = "give the server's address, like http://host:8000/v1"
    try:
        url = httpx.URL(base_url or "")
    except (httpx.InvalidURL, ValueError) as error:
        return f"launch.base_url={base_url}: {str(error).lower()}; {advice}"
    if url.scheme not in ("http", "https") or not url.host:
        return f"launch.base_url={base_url or 'null'}: {advice}"
    if url.userinfo:
        return f"launch.base_url: it holds a user name or password; {advice}, and name a key's variable with launch.api_key_env="
    if url.query or url.fragment:
        return f"launch.base_url={base_url}: it ends in a query or fragment, which no path can follow; {advice}"
    route = next((route for route in ROUTES if url.path.rstrip("/").endswith(route)), None)
    if route is not None:
        return f"launch.base_url={base_url}: it ends in {route}, which is added to it; {advice}"
    return None


def _key_fault(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        return f"launch.api_key_env={variable}: the environment has no such variable, or an empty one; export it first"
    if not key.isascii() or not key.isprintable() or " " in key:
        return (
            f"launch.api_key_env={variable}: its value holds a space, a line end or another character that no key has"
        )
    return None


class AttachLauncher(Launcher):
    """Finds a running server and makes sure that it serves the asked model."""

    name = "attach"
    local = False
    needs_executable = False
    settings_type = AttachSettings

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """A base URL that is none, and a key variable that is not set or holds what cannot be sent."""
        assert isinstance(settings, AttachSettings)
        return [fault for fault in (_url_fault(settings.base_url), _key_fault(settings.api_key_env)) if fault]

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Reach it and have it generate. Raises EngineError."""
        assert isinstance(settings, AttachSettings)
        faults = self.check(engine, context, settings)
        if faults:
            raise EngineError("; ".join(faults))
        key = os.environ[settings.api_key_env] if settings.api_key_env else None
        headers = (("Authorization", f"Bearer {key}"),) if key else ()
        base_url = (settings.base_url or "").rstrip("/")
        with client(headers, verify_tls=settings.verify_tls, timeout_s=CONNECT_TIMEOUT_S) as http:
            try:
                base_url, lists = _with_v1(http, base_url, settings, say)
                model = _model(http, base_url, engine, context) if lists else engine.served_model(context.model)
                _generates(http, base_url, engine, model)
                version = version_of(http, root_of(base_url), engine)
            except httpx.HTTPError as error:
                raise _unreachable(base_url, error) from error
            except EngineError as error:
                if error.kind == "unauthorized":
                    raise _unauthorized(base_url, settings) from error
                raise
        return AttachedEngine(
            base_url=base_url,
            root_url=root_of(base_url),
            version=version,
            model=model,
            headers=headers,
            verify_tls=settings.verify_tls,
            started_ns=time.time_ns(),
        )


def _generates(http: httpx.Client, base_url: str, engine: Engine, model: str) -> None:
    """Have it generate. Raises EngineError, httpx.HTTPError when it cannot be reached."""
    try:
        generate(http, base_url, engine, model, GENERATE_TIMEOUT_S)
    except (httpx.ConnectError, httpx.ConnectTimeout):
        raise
    except httpx.HTTPError as error:
        raise EngineError(
            f"launch.base_url={base_url} is there, and gave no token for a first request ({reason_of(error)}); "
            "does the server answer others?",
            kind="silent",
        ) from error


def root_of(base_url: str) -> str:
    """The server's root: the base URL without its `/v1`."""
    url = httpx.URL(base_url)
    return str(url.copy_with(path=url.path.removesuffix("/v1") or "/")).rstrip("/")


def _unauthorized(base_url: str, settings: AttachSettings) -> EngineError:
    how = (
        f"the key in {settings.api_key_env} is not accepted"
        if settings.api_key_env
        else "export a key and name its variable with launch.api_key_env="
    )
    return EngineError(f"{base_url} refuses the request (401 or 403): {how}", kind="unauthorized")


def _unreachable(base_url: str, error: httpx.HTTPError) -> EngineError:
    reason = reason_of(error)
    advice = "is the server up, and is that its address?"
    if "certificate" in reason:
        advice = "launch.verify_tls=false trusts it all the same"
    return EngineError(f"cannot reach launch.base_url={base_url}: {reason}; {advice}", kind="unreachable")


def _with_v1(http: httpx.Client, base_url: str, settings: AttachSettings, say: Say) -> tuple[str, bool]:
    """The base URL, with `/v1` added where that is where the API is, and whether it lists its models in time. Raises
    EngineError when the key is refused."""
    try:
        status = http.get(f"{base_url}/models").status_code
    except httpx.ReadTimeout:
        say(f"{base_url}/models gives no list of models within {CONNECT_TIMEOUT_S:g} s; going on without")
        return base_url, False
    if status == httpx.codes.NOT_FOUND and not base_url.endswith("/v1"):
        status = http.get(f"{base_url}/v1/models").status_code
        if status == httpx.codes.OK or status in FORBIDDEN:
            base_url = f"{base_url}/v1"
            say(f"launch.base_url: using {base_url}, where the API is")
    if status in FORBIDDEN:
        raise _unauthorized(base_url, settings)
    return base_url, True


def _model(http: httpx.Client, base_url: str, engine: Engine, context: LaunchContext) -> str:
    """The asked model, if the server's list has it or the server has no list. Raises EngineError."""
    wanted = engine.served_model(context.model)
    listed = served_models(http, base_url)
    if listed is None or wanted in listed or not engine.dialect.model_checked:
        return wanted
    near = difflib.get_close_matches(wanted, listed, n=1)
    advice = f"did you mean model.name={near[0]}?" if near else f"choose one with model.name={listed[0]}"
    raise EngineError(
        f"model.name={wanted} is not served by {base_url}, which serves {', '.join(listed[:5])}; {advice}",
        kind="wrong_model",
    )
