"""The launcher `attach`: measure a server that is already running, and leave it running."""

import difflib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from servebench.contracts.engine import Engine, LaunchContext, Launcher, RunningEngine, Say, StopReport, root_of
from servebench.contracts.settings import LaunchSettings
from servebench.engine.supervisor.endpoint import (
    UNAUTHORIZED,
    generate_token,
    http_error_reason,
    served_models,
    version_of,
)
from servebench.protocol.kinds.table import KINDS
from servebench.util.addresses import is_loopback
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError, FailureKind
from servebench.util.tls import Trust, access_problems, variable_problem

CONNECT_TIMEOUT_S = 5.0
GENERATE_S = 120.0
UNKNOWN_MODEL = "servebench-asks-whether-names-matter"
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
ROUTES = (*(kind.path for kind in KINDS.values()), "/v1/models")


@dataclass(frozen=True, kw_only=True)
class AttachSettings(LaunchSettings):
    """`base_url` ends in `/v1`. `api_key_env` names the environment variable with the API key; keys never appear in a config.
    The key is a bearer token, or goes as it is into the header `api_key_header`. `headers` and `query` go with each request;
    `headers_env` names the variables that hold secret headers.
    `ca_file` names a PEM file of the authorities to trust; `verify_tls=false` accepts any certificate."""

    base_url: str | None = None
    api_key_env: str | None = None
    api_key_header: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    headers_env: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    ca_file: str | None = None
    verify_tls: bool = True

    @property
    def trust(self) -> Trust:
        """Return whom to trust, as the clients take it."""
        return self.verify_tls and (self.ca_file or True)

    def sent_headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of each request, with what the variables hold now: keep them out of files and logs."""
        found = {**self.headers, **{name: os.environ[variable] for name, variable in self.headers_env.items()}}
        if self.api_key_env:
            key = os.environ[self.api_key_env]
            found |= {self.api_key_header: key} if self.api_key_header else {"Authorization": f"Bearer {key}"}
        return tuple(found.items())


@dataclass(kw_only=True)
class AttachedEngine(RunningEngine):
    """A RunningEngine that servebench did not start."""

    def died(self) -> str | None:
        """Return None: only failed requests can show that a remote server is gone."""
        return None

    def stop(self) -> StopReport:
        """Do nothing: the server was not started here."""
        return StopReport(stopped=False, forced=False, seconds=0.0)


def _url_problem(base_url: str | None) -> str | None:
    advice = "use the server's address, such as http://host:8000/v1"
    named = f"launch.base_url={base_url or 'null'}"
    try:
        url = httpx.URL(base_url or "")
    except (httpx.InvalidURL, ValueError) as error:
        return f"{named}: {str(error).lower()}; {advice}"
    route = next((route for route in ROUTES if url.path.rstrip("/").endswith(route)), None)
    if url.userinfo:
        return (
            f"launch.base_url must not contain a user name or password; {advice}, "
            "and name the variable of an API key with launch.api_key_env="
        )
    if url.scheme not in ("http", "https") or not url.host:
        return f"{named} is not an http(s) URL; {advice}"
    if url.query or url.fragment:
        return f"{named} must not have a query or fragment, since paths are appended; set launch.query.NAME=VALUE"
    return f"{named} must not include {route}, which servebench appends; {advice}" if route is not None else None


class AttachLauncher(Launcher):
    """Connect to a running server and make sure that it serves the model."""

    name = "attach"
    local = False
    needs_executable = False
    settings_type = AttachSettings

    def check(self, engine: Engine, context: LaunchContext, settings: LaunchSettings) -> list[str]:
        """Report an invalid base URL, or an API key that is missing or invalid."""
        assert isinstance(settings, AttachSettings)
        problems = [_url_problem(settings.base_url)]
        problems += [variable_problem(f"launch.headers_env.{name}", one) for name, one in settings.headers_env.items()]
        return [
            *filter(None, problems),
            *access_problems("launch", settings.api_key_env, settings.trust),
        ]

    def launch(
        self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, log_path: Path, say: Say
    ) -> RunningEngine:
        """Connect to the server and have it answer a request. Raises EngineError."""
        return self.find(engine, context, settings, say=say)

    def find(self, engine: Engine, context: LaunchContext, settings: LaunchSettings, *, say: Say) -> RunningEngine:
        """Connect to the server and have it answer a request. Raises EngineError."""
        assert isinstance(settings, AttachSettings)
        problems = self.check(engine, context, settings)
        if problems:
            raise EngineError("; ".join(problems))
        headers, query = settings.sent_headers(), tuple(settings.query.items())
        base_url = (settings.base_url or "").rstrip("/")
        with client(headers, query=query, verify_tls=settings.trust, timeout_s=CONNECT_TIMEOUT_S) as http:
            try:
                base_url, lists_models = _complete_url(http, base_url, say)
                model = engine.served_model(context.model)
                if lists_models:
                    _check_model(http, base_url, engine, model, context)
                names = _generate_token(http, base_url, engine, model, context, own=True)
                version = version_of(http, root_of(base_url), engine)
            except httpx.HTTPError as error:
                raise _unreachable(base_url, error) from error
            except EngineError as error:
                raise _refused(error, settings) from error
        for usual, name in names.items():
            say(f"sending {name} in place of {usual}, which the server does not take")
        return AttachedEngine(
            base_urls=(base_url,),
            names=names,
            version=version,
            model=model,
            headers=headers,
            query=query,
            verify_tls=settings.trust,
            started_ns=time.time_ns(),
        )


def _generate_token(
    http: httpx.Client, base_url: str, engine: Engine, model: str, context: LaunchContext, *, own: bool = False
) -> Mapping[str, str]:
    """Have the server answer a request; return the `Dialect.names` that it needs. Raises EngineError, httpx.HTTPError."""
    try:
        asked: dict[str, Any] = {"api": context.api, "extra": context.body, "whole": True, "own": own}
        return generate_token(http, base_url, engine, model, GENERATE_S, **asked) or {}
    except (httpx.ConnectError, httpx.ConnectTimeout):
        raise
    except httpx.HTTPError as error:
        raise EngineError(
            f"{base_url} accepts connections but did not answer a first request ({http_error_reason(error)}); "
            "check whether the server answers other clients",
            kind=FailureKind.SILENT,
        ) from error


def _refused(error: EngineError, settings: AttachSettings) -> EngineError:
    """Return the error with the setting whose address it is about, and with what to do where it does not say."""
    advice = ""
    if error.kind == FailureKind.UNAUTHORIZED and settings.api_key_env:
        advice = f"; the server rejects the key in {settings.api_key_env} (launch.api_key_env)"
    elif error.kind == FailureKind.UNAUTHORIZED:
        advice = "; export an API key and name its variable with launch.api_key_env="
    elif error.kind == FailureKind.OTHER:
        advice = "; check the path of the address, model.name and workload.api"
    elif error.kind == FailureKind.NOT_READY:
        advice = "; try again later, or see the log of the server"
    return EngineError(f"launch.base_url={settings.base_url}: {error}{advice}", kind=error.kind)


def _unreachable(base_url: str, error: httpx.HTTPError) -> EngineError:
    reason = http_error_reason(error)
    advice = "check that the server is running and that the address is right"
    what = f"cannot reach launch.base_url={base_url}"
    if not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        what = f"a first request to launch.base_url={base_url} failed"
    if not isinstance(error, httpx.ConnectError) or base_url.startswith("https:"):
        advice += ", https for a server with TLS and http for one without"
    if "issuer" in reason or "self-signed" in reason:
        advice = "if a CA of your own issued its certificate, name it with launch.ca_file=FILE.pem (or SSL_CERT_FILE)"
    elif "certificate" in reason:
        advice = "the server needs a valid certificate for this name"
    elif not is_loopback(httpx.URL(base_url).host) and (proxy := next(filter(os.environ.get, PROXIES), None)):
        advice += f"; servebench connects directly and does not use the proxy in {proxy}"
    return EngineError(f"{what}: {reason}; {advice}", kind=FailureKind.UNREACHABLE)


def _complete_url(http: httpx.Client, base_url: str, say: Say) -> tuple[str, bool]:
    """Return the base URL, with `/v1` appended if the API is there, and whether the server lists its models in time. A key that
    may not list them can still be good for requests."""
    # llama.cpp lists its models at / too, and has another API there
    versioned = f"{base_url}/v1"
    first, second = (base_url, versioned) if httpx.URL(base_url).path.strip("/") else (versioned, base_url)
    try:
        status = http.get(f"{first}/models").status_code
    except httpx.ReadTimeout:
        say(f"{first}/models did not answer within {CONNECT_TIMEOUT_S:g} s; continuing without a list of models")
        return first, False
    found = first
    if status == httpx.codes.NOT_FOUND and not base_url.endswith("/v1"):
        status = http.get(f"{second}/models").status_code
        found = second if status == httpx.codes.OK or status in UNAUTHORIZED else base_url
    if found != base_url:
        say(f"using {found}, where the API is")
    return found, True


def _check_model(http: httpx.Client, base_url: str, engine: Engine, wanted: str, context: LaunchContext) -> None:
    """Raise EngineError if the server lists its models, and neither is the wanted one among them nor is it one of those that a
    server knows besides: aliases, deployments, tags, what a router passes on."""
    listed = served_models(http, base_url)
    if listed is None or wanted in listed or not engine.dialect.model_checked:
        return
    with suppress(EngineError):
        _generate_token(http, base_url, engine, wanted, context)
        try:
            _generate_token(http, base_url, engine, UNKNOWN_MODEL, context)
        except EngineError:
            return
    near = difflib.get_close_matches(wanted, listed, n=1)
    advice = f"did you mean model.name={near[0]}?" if near else f"use one of them, such as model.name={listed[0]}"
    raise EngineError(
        f"{base_url} does not serve model.name={wanted}; it serves {', '.join(listed[:5])}; {advice}",
        kind=FailureKind.WRONG_MODEL,
    )
