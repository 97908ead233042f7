"""Count tokens with an engine's own endpoint."""

import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from servebench.engine.file_tokenizer import PARALLEL, ExactTokenizer
from servebench.engine.supervisor.endpoint import http_error_reason, response_json
from servebench.protocol.errors import error_text
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError
from servebench.util.tls import Trust

TOKENIZE_OPTIONS = {"add_special": False, "add_special_tokens": False}
"""llama.cpp reads `content` and `add_special`, vLLM and SGLang `prompt` and `add_special_tokens`; each ignores the others."""


def _release(pool: ThreadPoolExecutor, http: httpx.Client) -> None:
    pool.shutdown(wait=False)
    http.close()


class EngineTokenizer(ExactTokenizer):
    """Count with the engine's own tokenize endpoint."""

    name = "engine"

    def __init__(self, url: str, headers: Sequence[tuple[str, str]], *, verify_tls: Trust) -> None:
        self._url = url
        self._http = client(headers, verify_tls=verify_tls, timeout_s=60.0)
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="tokenize")
        # nothing signals the last count, so connections and threads end with the object
        weakref.finalize(self, _release, self._pool, self._http)

    def _count_one(self, text: str) -> int:
        try:
            response = self._http.post(self._url, json=TOKENIZE_OPTIONS | {"content": text, "prompt": text})
        except httpx.HTTPError as error:
            raise EngineError(f"cannot count tokens at {self._url}: {http_error_reason(error)}") from error
        if response.status_code != httpx.codes.OK:
            raise EngineError(
                f"cannot count tokens: {self._url} returned {response.status_code}: {error_text(response.content)}"
            )
        try:
            return len(response_json(response)["tokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"cannot count tokens: {self._url} returned no list of tokens: {error_text(response.content)}"
            ) from error

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, without special tokens. Raises EngineError if the engine does not answer."""
        return list(self._pool.map(self._count_one, texts))
