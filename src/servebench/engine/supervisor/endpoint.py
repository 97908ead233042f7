"""Ask an endpoint, off the hot path: its models, one real token, how many tokens a text has, its settings, an empty cache."""

import re
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import httpx

from servebench.contracts.engine import Engine, RunningEngine
from servebench.contracts.results import BUSY
from servebench.engine.file_tokenizer import PARALLEL, ExactTokenizer
from servebench.protocol.answer import FirstContent
from servebench.protocol.errors import error_text, shorten
from servebench.protocol.json_values import decode_text, object_at
from servebench.protocol.kinds.table import compose, kind_named
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError, FailureKind
from servebench.util.safe_text import in_one_line

WORD_MAX = 40
"""Characters of the texts whose tokens are kept: words of a vocabulary, no prompts."""
UNAUTHORIZED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
NO_ROUTE = (400, 404, 405, 422, 501)
"""Statuses of servers without this route, or with a model without a chat template."""
LACKING = (404, 405, 501)
"""Those of servers without this route, for a request of any kind and length."""
TEMPORARY = (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_EARLY)
"""Statuses below 500 that may change when a request is sent again."""
THOUGHT_TOKENS = 256
QUOTE_CHARACTERS = 300
"""How much of a server's own text is kept."""
PAUSES_S = (0.0, 1.0, 2.0)
"""How long a server that fails is left alone before each attempt to ask it once more."""
BUSY_PAUSE_S = 5.0
"""The same of one that is busy, after these."""
BEGINNING_CHARACTERS = 120
"""How much is quoted of an answer without generated content."""
RESET_TIMEOUT_S = 10.0
"""vLLM and SGLang refuse while requests still hold blocks; an idle engine releases them within a second."""
RESET_PAUSE_S = 0.2
SETTINGS_TIMEOUT_S = 60.0
"""vLLM runs compilers and package managers to describe its system, which takes long on a busy machine."""
SETTINGS_BYTES_MAX = 2_000_000
TOKENIZE_OPTIONS = {"add_special": False, "add_special_tokens": False}
"""llama.cpp reads `content` and `add_special`, vLLM and SGLang `prompt` and `add_special_tokens`; each ignores the others."""


def response_json(response: httpx.Response) -> Any:
    """Return the JSON of a response. Raises ValueError if it is not JSON, or nested deeper than can be read."""
    try:
        return response.json()
    except RecursionError as error:
        raise ValueError("the answer is nested too deep") from error


def json_at(http: httpx.Client, url: str) -> Any:
    """Return the JSON that a server has at a URL; None if it has none. Never raises."""
    try:
        response = http.get(url)
        return response_json(response) if response.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError):
        return None


def http_error_reason(error: httpx.HTTPError) -> str:
    """Return why a request failed, in a few lower-case words."""
    cause: BaseException = error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    text = getattr(cause, "strerror", None) or str(cause) or type(error).__name__
    text = re.sub(r"bytearray\(b?(.*)\)", r"\1", str(text), flags=re.DOTALL)
    return in_one_line(text, QUOTE_CHARACTERS).lower().rstrip(".")


def served_models(http: httpx.Client, base_url: str, *, aliases: bool = True) -> list[str] | None:
    """Return the model ids, and with `aliases` their other names, that the endpoint lists, each once; None if it has no list.
    Raises httpx.HTTPError if it cannot be reached."""
    response = http.get(f"{base_url}/models")
    if response.status_code != httpx.codes.OK:
        return None
    try:
        models: list[dict[str, Any]] = response_json(response)["data"]
        names = [str(model["id"]) for model in models]
        names += [str(alias) for model in models for alias in (model.get("aliases") if aliases else None) or ()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return list(dict.fromkeys(in_one_line(name, QUOTE_CHARACTERS) for name in names)) or None


def version_of(http: httpx.Client, root_url: str, engine: Engine) -> str | None:
    """Return the version that the server reports; None if it reports none. Never raises: the version is optional."""
    document = None if engine.version_path is None else json_at(http, root_url + engine.version_path)
    version = object_at(document).get("version")
    return in_one_line(str(version), QUOTE_CHARACTERS) if version else None


def generate_token(
    http: httpx.Client,
    base_url: str,
    engine: Engine,
    model: str,
    timeout_s: float,
    *,
    api: str = "chat",
    extra: Mapping[str, Any] | None = None,
    whole: bool = False,
    own: bool = False,
) -> Mapping[str, str] | None:
    """Send one real request of a kind in the engine's dialect, or of another kind where the server has no route for it (with
    `own` that is an error that names the other kind); return at the first content, or with `whole` at the end of the answer.
    Kinds that generate nothing get the `extra` fields. What is refused with another name of a field is sent again with that
    name. Returns such names (`Dialect.names`), None if the answer has not said that it is over.

    Raises EngineError if the answer has no content or is an error (kind `not_ready` if that may change, `unauthorized`, else
    `other`), and httpx.HTTPError if there is no answer.
    """
    deadline = time.monotonic() + timeout_s
    first_problem: EngineError | None = None
    for name in (api, *kind_named(api).probe_instead):
        kind = kind_named(name)
        for header in kind.headers.items():
            http.headers.setdefault(*header)
        # what a body says of answers may not suit one so short
        probe = kind.probe if kind.answers_text else replace(kind.probe, extra=extra or {})
        for names in ({}, kind.other_names):
            path, body = compose(engine, probe, model, names)
            content = FirstContent(kind.scan())
            problem, ended, try_another = _attempt(http, base_url + path, body, content, deadline, whole=whole)
            if problem is None and own and isinstance(first_problem, NoRouteError):
                raise EngineError(
                    f"{first_problem}; it answers at {path}: set workload.api={name}", kind=FailureKind.CONFIG
                )
            if problem is None:
                return names if ended else None
            if not any(name in str(problem) for name in kind.other_names.values()):
                break
            # a model that thinks takes no temperature, and may not answer at all where it cannot end its thoughts
            probe = replace(probe, temperature=None, output_tokens=THOUGHT_TOKENS)
        # the workload's own kind matters most
        first_problem = first_problem or problem
        if not try_another:
            break
    assert first_problem is not None
    raise first_problem


class NoRouteError(EngineError):
    """A server has no route for a request."""


class BusyError(EngineError):
    """A server refused a request because it is busy."""


def failing(
    running: RunningEngine, engine: Engine, timeout_s: float, *, patience_s: float = 0.0, **asked: Any
) -> EngineError | None:
    """Return what a server does instead of answering one more request; None if it answers one in three attempts, or one that
    is busy in `patience_s`. `asked` are the kind and the further fields of the request, as `generate_token` takes them.

    A server that restarts, or rejects some requests only, is asked again after a moment; one that leaves a request open is not.
    """
    said: EngineError | None = None
    began_s = time.monotonic()
    for pause_s in chain(PAUSES_S, repeat(BUSY_PAUSE_S)):
        spent_s = time.monotonic() - began_s
        tired = spent_s > timeout_s or pause_s == BUSY_PAUSE_S
        if said is not None and tired and not (isinstance(said, BusyError) and spent_s < patience_s):
            break
        time.sleep(pause_s)
        with client(running.headers, query=running.query, verify_tls=running.verify_tls, timeout_s=timeout_s) as http:
            try:
                names = generate_token(http, running.base_url, engine, running.model, timeout_s, whole=True, **asked)
                if names is not None:
                    return None
                said = EngineError(f"{running.base_url} ends an answer without a finish reason, [DONE] or usage")
            except EngineError as error:
                said = error
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                said = EngineError(f"cannot reach {running.base_url}: {http_error_reason(error)}")
            except httpx.HTTPError as error:
                said = EngineError(f"a request to {running.base_url} failed: {http_error_reason(error)}")
    return said


def _attempt(
    http: httpx.Client, url: str, body: Mapping[str, Any], content: FirstContent, deadline: float, *, whole: bool
) -> tuple[EngineError | None, bool, bool]:
    """Return what is wrong (None if content was generated), whether the answer has said that it is over, and whether
    another kind of request may work instead."""
    left_s = max(1.0, deadline - time.monotonic())
    with http.stream("POST", url, json=body, timeout=httpx.Timeout(left_s, connect=5.0)) as response:
        status = response.status_code
        if status in UNAUTHORIZED:
            response.read()
            raise EngineError(f"{url} returned {_refusal(response)}", kind=FailureKind.UNAUTHORIZED)
        if status != httpx.codes.OK:
            response.read()
            if status in BUSY:
                return BusyError(f"{url} returned {_refusal(response)}", kind=FailureKind.NOT_READY), False, False
            temporary = status in TEMPORARY or (status >= httpx.codes.INTERNAL_SERVER_ERROR and status not in NO_ROUTE)
            kind = FailureKind.NOT_READY if temporary else FailureKind.OTHER
            refused = NoRouteError if status in LACKING else EngineError
            return refused(f"{url} returned {_refusal(response)}", kind=kind), False, status in NO_ROUTE
        try:
            for data in response.iter_bytes():
                content.feed(data)
                if _has_content(content, url) and not whole:
                    return None, content.ended, False
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the deadline is over")
        except httpx.ReadTimeout:
            lacks = "no end of its answer" if content.arrived else "no generated content"
            late = f"{url} streamed {lacks} in time ({left_s:.3g} s)"
            return EngineError(late, kind=FailureKind.NOT_READY), False, False
        content.finish()
        if _has_content(content, url):
            return None, content.ended, False
    beginning = in_one_line(decode_text(content.beginning[: 8 * BEGINNING_CHARACTERS]), BEGINNING_CHARACTERS)
    answer = f"its answer begins with: {beginning}" if beginning else "its answer is empty"
    return EngineError(f"{url} generated nothing; {answer}"), False, True


def _refusal(response: httpx.Response) -> str:
    """Return the status of a response other than 200, what its body or the address of a redirect says, and the usual path where
    there is none."""
    location = response.headers.get("location")
    if response.has_redirect_location and location:
        return f"{response.status_code}: redirected to {shorten(location)}; set launch.base_url to the address that answers"
    wrong_path = response.status_code == httpx.codes.NOT_FOUND and "/v1/" not in response.url.path
    hint = "; the usual path of an API is /v1" if wrong_path else ""
    if wait := response.headers.get("retry-after"):
        hint = f"; Retry-After: {shorten(wait)}"
    reason = error_text(response.content)
    return (f"{response.status_code}: {reason}" if reason else str(response.status_code)) + hint


def _has_content(content: FirstContent, url: str) -> bool:
    """Return whether generated content has arrived. Raises EngineError if the answer reports an error."""
    if content.error is not None:
        raise EngineError(f"{url} returned an error: {content.error}")
    return content.arrived


def reset_cache(engine: Engine, running: RunningEngine) -> str | None:
    """Empty the engine's prefix cache. Return None on success, else one line with the reason. Never raises."""
    if engine.reset_path is None:
        return f"{engine.name} cannot empty its cache"
    deadline = time.monotonic() + RESET_TIMEOUT_S
    with client(running.headers, verify_tls=running.verify_tls, timeout_s=RESET_TIMEOUT_S) as http:
        while (reason := _reset_once(http, engine.reset_path, running)) and time.monotonic() <= deadline:
            time.sleep(RESET_PAUSE_S)
    return reason


def _reset_once(http: httpx.Client, path: str, running: RunningEngine) -> str | None:
    try:
        response = http.post(f"{running.root_url}{path}")
        if response.status_code != httpx.codes.OK:
            return f"{path} returned {response.status_code}: {error_text(response.content)}"
        failed = object_at(response_json(response)).get("success") is False
    except httpx.HTTPError as error:
        return f"{path}: {http_error_reason(error)}"
    except ValueError:
        # SGLang returns a sentence
        return None
    return f"{path} reported a failure" if failed else None


def resolved_settings(engine: Engine, running: RunningEngine) -> dict[str, Any] | None:
    """Return the settings that the engine reports, by path; None if it reports none. Never raises."""
    options: Any = {"verify_tls": running.verify_tls, "timeout_s": SETTINGS_TIMEOUT_S, "bytes_max": SETTINGS_BYTES_MAX}
    with client(running.headers, **options) as http:
        found = {path: json_at(http, f"{running.root_url}{path}") for path in engine.settings_paths}
    return {path: settings for path, settings in found.items() if settings is not None} or None


class EngineTokenizer(ExactTokenizer):
    """Count with the engine's own tokenize endpoint. The tokens of words are kept in `counts`, for later starts of the engine: a
    vocabulary took a second of each start of real llama.cpp."""

    name = "engine"

    def __init__(self, engine: Engine, running: RunningEngine, counts: dict[str, int] | None = None) -> None:
        self._counts = {} if counts is None else counts
        self._url = f"{running.root_url}{engine.tokenize_path}"
        self._http = client(running.headers, verify_tls=running.verify_tls, timeout_s=60.0)
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="tokenize")
        # nothing signals the last count, so connections and threads end with the object
        weakref.finalize(self, _release, self._pool, self._http)

    def _count_one(self, text: str) -> int:
        try:
            response = self._http.post(self._url, json=TOKENIZE_OPTIONS | {"content": text, "prompt": text})
        except httpx.HTTPError as error:
            raise EngineError(f"cannot count tokens at {self._url}: {http_error_reason(error)}") from error
        problem = f"cannot count tokens: {self._url} returned"
        if response.status_code != httpx.codes.OK:
            raise EngineError(f"{problem} {response.status_code}: {error_text(response.content)}")
        try:
            return len(response_json(response)["tokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{problem} no list of tokens: {error_text(response.content)}") from error

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, without special tokens. Raises EngineError if the engine does not answer."""
        asked = [text for text in dict.fromkeys(texts) if text not in self._counts]
        found = dict(zip(asked, self._pool.map(self._count_one, asked), strict=True))
        self._counts.update((text, count) for text, count in found.items() if len(text) <= WORD_MAX)
        return [found[text] if text in found else self._counts[text] for text in texts]


def _release(pool: ThreadPoolExecutor, http: httpx.Client) -> None:
    pool.shutdown(wait=False)
    http.close()
