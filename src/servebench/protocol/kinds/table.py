"""The table of the kinds of requests."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servebench.contracts.engine import Engine
from servebench.contracts.request import Request
from servebench.protocol.kinds.kind import RequestKind
from servebench.protocol.kinds.messages import Messages
from servebench.protocol.kinds.openai import Chat, Completions
from servebench.protocol.kinds.pooling import Embeddings, Rerank
from servebench.protocol.kinds.responses import Responses
from servebench.util.errors import ConfigError

KINDS: dict[str, RequestKind] = {
    kind.name: kind for kind in (Chat(), Completions(), Responses(), Messages(), Embeddings(), Rerank())
}
"""By name: the values of `workload.api` and `quality.api`."""


def kind_named(name: str) -> RequestKind:
    """Return the kind of this name. Raises ConfigError."""
    if problems := api_problems("api", name):
        raise ConfigError(problems)
    return KINDS[name]


def api_problems(key: str, name: str) -> list[str]:
    """Return a line if a setting names no kind."""
    *most, last = (f"'{one}'" for one in KINDS)
    return [] if name in KINDS else [f"{key} must be {', '.join(most)} or {last} (got '{name}')"]


def kind_of(request: Request) -> RequestKind:
    """Return the kind of a request. Raises ConfigError."""
    return kind_named(request.api or ("completions" if request.messages is None else "chat"))


def compose(
    engine: Engine, request: Request, model: str, names: Mapping[str, str] | None = None
) -> tuple[str, dict[str, Any]]:
    """Return the path below the base URL and the JSON body of a streamed request, with only fields that the engine knows, by the
    `names` that the server has for them. Raises ConfigError for a kind that does not exist."""
    kind = kind_of(request)
    dialect = replace(engine.dialect, names=names) if names else engine.dialect
    return kind.path_of(dialect), engine.adapt_body(kind.body(request, model, dialect), request)
