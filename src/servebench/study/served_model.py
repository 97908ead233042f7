"""Ask an endpoint for its model where the command names none."""

import json
import os
from collections.abc import Mapping, Sequence

import httpx

from servebench.engine.supervisor.endpoint import served_models
from servebench.registry.shorthand import ENDPOINT, with_scheme
from servebench.util.bounded_http import client
from servebench.util.errors import ConfigError

ANSWER_S = 3.0
"""A list of models that takes longer is not waited for: the checks before the run say what is wrong."""


def with_served_model(words: Sequence[str]) -> list[str]:
    """Return the words, with the name of the model if they name one endpoint and no model and it serves exactly one.

    Raises ConfigError if it serves several.
    """
    given = dict(word.split("=", 1) for word in words if "=" in word)
    url = given.get(ENDPOINT, "")
    named = any(key == "model" or key.startswith(("model.", "experiment")) for key in given)
    if not url or "," in url or named:
        return list(words)
    listed = _listed(with_scheme(url).rstrip("/"), given)
    if len(listed) > 1:
        raise ConfigError(f"{ENDPOINT}={url} serves {', '.join(listed[:5])}; choose one, as in model.name={listed[0]}")
    return [*words, *(f"model.name={json.dumps(name)}" for name in listed)]


def _listed(url: str, given: Mapping[str, str]) -> list[str]:
    key, name = os.environ.get(given.get("launch.api_key_env", "")), given.get("launch.api_key_header")
    headers = ((name, key) if name else ("Authorization", f"Bearer {key}"),) if key else ()
    trust = given.get("launch.verify_tls", "").lower() != "false" and (given.get("launch.ca_file") or True)
    try:
        with client(headers, verify_tls=trust, timeout_s=ANSWER_S) as http:
            return served_models(http, url, aliases=False) or served_models(http, f"{url}/v1", aliases=False) or []
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, ConfigError):
        return []
