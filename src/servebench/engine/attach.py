"""The launcher `attach`: measures a server that somebody else started, and leaves it alone."""

from __future__ import annotations

import difflib
import os
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from servebench.contracts.engine import Command, Engine, LaunchContext, Launcher, Phase, RunningEngine, Say, StopReport
from servebench.contracts.settings import LaunchSettings
from servebench.engine.answers import client, generate, reason_of, served_models
from servebench.errors import EngineError

CONNECT_TIMEOUT_S = 5.0
GENERATE_TIMEOUT_S = 120.0


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
    headers: tuple[tuple[str, str], ...]
    verify_tls: bool
    started_ns: int
    phases: tuple[Phase, ...] = ()
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


def _key(settings: AttachSettings) -> str | None:
    return os.environ.get(settings.api_key_env) if settings.api_key_env else None


class AttachLauncher(Launcher):
    """Finds a running server and makes sure that it serves the asked model."""

    name = "attach"
    settings_type = AttachSettings

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """A base URL that is none, and a key variable that is not set."""
        assert isinstance(settings, AttachSettings)
        faults = []
        url = settings.base_url or ""
        if not url.startswith(("http://", "https://")) or not httpx.URL(url).host:
            faults.append(f"launch.base_url={url or 'null'}: give the server's address, like http://host:8000/v1")
        if settings.api_key_env and not os.environ.get(settings.api_key_env):
            faults.append(f"launch.api_key_env={settings.api_key_env}: the environment has no such variable; export it first")
        return faults

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Reach it and have it generate. Raises EngineError."""
        assert isinstance(settings, AttachSettings)
        key = _key(settings)
        headers = (("Authorization", f"Bearer {key}"),) if key else ()
        base_url = (settings.base_url or "").rstrip("/")
        with client(headers, verify_tls=settings.verify_tls, timeout_s=CONNECT_TIMEOUT_S) as http:
            try:
                base_url = _with_v1(http, base_url, settings, say)
                model = _model(http, base_url, engine, context)
                generate(http, base_url, engine, model, GENERATE_TIMEOUT_S)
            except httpx.HTTPError as error:
                raise EngineError(
                    f"cannot reach launch.base_url={base_url}: {reason_of(error)}; is the server up, and is that its address?",
                    kind="unreachable",
                ) from error
            except EngineError as error:
                if error.kind == "unauthorized":
                    raise _unauthorized(base_url, settings) from error
                raise
        url = httpx.URL(base_url)
        return AttachedEngine(
            base_url=base_url,
            root_url=str(url.copy_with(path=url.path.removesuffix("/v1") or "/")).rstrip("/"),
            model=model,
            headers=headers,
            verify_tls=settings.verify_tls,
            started_ns=time.time_ns(),
        )


def _unauthorized(base_url: str, settings: AttachSettings) -> EngineError:
    how = (
        f"the key in {settings.api_key_env} is not accepted"
        if settings.api_key_env
        else "export a key and name its variable with launch.api_key_env="
    )
    return EngineError(f"{base_url} refuses the request (401 or 403): {how}", kind="unauthorized")


def _with_v1(http: httpx.Client, base_url: str, settings: AttachSettings, say: Say) -> str:
    """The base URL, with `/v1` added where that is where the API is."""
    response = http.get(f"{base_url}/models")
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise _unauthorized(base_url, settings)
    if response.status_code == httpx.codes.NOT_FOUND and not base_url.endswith("/v1"):
        if http.get(f"{base_url}/v1/models").status_code == httpx.codes.OK:
            say(f"launch.base_url: using {base_url}/v1, where the API is")
            return f"{base_url}/v1"
    return base_url


def _model(http: httpx.Client, base_url: str, engine: Engine, context: LaunchContext) -> str:
    """The asked model, if the server's list has it or the server has no list. Raises EngineError."""
    wanted = engine.served_model(context.model)
    listed = served_models(http, base_url)
    if listed is None or wanted in listed or not engine.dialect.model_checked:
        return wanted
    near = difflib.get_close_matches(wanted, listed, n=1)
    advice = f"did you mean model.name={near[0]}?" if near else f"choose one with model.name={listed[0]}"
    raise EngineError(
        f"model.name={wanted} is not served by {base_url}, which serves {', '.join(listed[:5])}; {advice}", kind="wrong_model"
    )
