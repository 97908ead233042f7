"""Count tokens for a workload: by the engine itself, by the model's tokenizer file, or by an approximation."""

import math
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from servebench.contracts.engine import Engine, RunningEngine
from servebench.contracts.request import Tokenizer
from servebench.contracts.settings import ModelSettings
from servebench.engine.supervisor.probe import http_error_reason, response_json
from servebench.engine.tokenizer_process import TokenizerProcess
from servebench.protocol.errors import error_text
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError
from servebench.util.tls import Trust

CHARACTERS_PER_TOKEN = 4.0
"""English text in common byte-pair vocabularies: about four characters per token (OpenAI's tokenizer help page)."""

PARALLEL = 8

TOKENIZE_OPTIONS = {"add_special": False, "add_special_tokens": False}
"""llama.cpp reads `content` and `add_special`, vLLM and SGLang `prompt` and `add_special_tokens`; each ignores the others."""


class ApproximateTokenizer:
    """Estimate one token for every four characters, for a model without a known tokenizer. Points then carry a warning."""

    name = "approximate (4 characters a token)"
    exact = False

    def __init__(self, characters: float = CHARACTERS_PER_TOKEN) -> None:
        self._characters = characters

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return a quarter of the characters, at least 1 for a text that is not empty."""
        return [max(1, round(len(text) / self._characters)) if text else 0 for text in texts]

    def truncate(self, text: str, tokens: int) -> str:
        """Return the first four characters per token."""
        return text[: int(tokens * self._characters)]


class EmulatedTokenizer(ApproximateTokenizer):
    """Count as an emulated engine does: one token for every four characters or part of them."""

    name = "emulated (4 characters a token)"
    exact = True

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return a quarter of the characters, rounded up."""
        return [math.ceil(len(text) / CHARACTERS_PER_TOKEN) for text in texts]


class _ExactTokenizer:
    """Truncate by bisection over characters: token counts grow with the text, except for a token or two at the cut."""

    exact = True

    def count(self, texts: Sequence[str]) -> list[int]:
        raise NotImplementedError

    def truncate(self, text: str, tokens: int) -> str:
        """Return the longest prefix of at most this many tokens, with few counts."""
        if self.count([text])[0] <= tokens:
            return text
        low, high = 0, len(text)
        while high - low > 1:
            step = max(1, (high - low) // PARALLEL)
            cuts = list(range(low + step, high, step))
            counts = self.count([text[:cut] for cut in cuts])
            fitting = [cut for cut, count in zip(cuts, counts, strict=True) if count <= tokens]
            low = max(fitting, default=low)
            high = min((cut for cut in cuts if cut > low), default=high)
        return text[:low]


def _release(pool: ThreadPoolExecutor, http: httpx.Client) -> None:
    pool.shutdown(wait=False)
    http.close()


class EngineTokenizer(_ExactTokenizer):
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


class FileTokenizer(_ExactTokenizer):
    """Count with the model's `tokenizer.json`, read by the package `tokenizers` in a process of its own."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises EngineError if it is not a tokenizer."""
        self.name = str(path)
        self._process = TokenizerProcess(path)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, without special tokens. Raises EngineError if the file cannot count them."""
        return self._process.count(texts)


def tokenizer_file(model: ModelSettings) -> Path | None:
    """Return the model's `tokenizer.json`: `model.tokenizer`, else the one in the model's folder or in the local cache of the
    Hugging Face hub; None if there is none.

    Raises EngineError if `model.tokenizer` does not exist.
    """
    if model.tokenizer is not None:
        named = Path(model.tokenizer).expanduser()
        named = named / "tokenizer.json" if named.is_dir() else named
        if not named.is_file():
            raise EngineError(
                f"model.tokenizer={model.tokenizer}: no file {named}; name a tokenizer.json or its folder"
            )
        return named
    if model.path is not None:
        file = Path(model.path).expanduser() / "tokenizer.json"
        return file if file.is_file() else None
    return _cached_file(model)


def _cached_file(model: ModelSettings) -> Path | None:
    """Return the file in the local cache of the Hugging Face hub, which an engine fills that downloads the model."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model.name, "tokenizer.json", revision=model.revision)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def engine_tokenizer(engine: Engine, running: RunningEngine, model: ModelSettings) -> Tokenizer:
    """Return the first tokenizer that is available: the model's file, the engine's endpoint, or an approximation.

    The file is first because it is the same for all engines of a study. Raises EngineError if `model.tokenizer` cannot be used.
    """
    known: Tokenizer | None = getattr(running, "tokenizer", None)
    if known is not None:
        return known
    path = tokenizer_file(model)
    if path is not None:
        return FileTokenizer(path)
    if engine.tokenize_path is not None:
        tokenizer = EngineTokenizer(
            running.root_url + engine.tokenize_path, running.headers, verify_tls=running.verify_tls
        )
        try:
            tokenizer.count(["one two"])
        except EngineError:
            # an older version of the engine, or a proxy in front of it, may not have the path
            pass
        else:
            return tokenizer
    return offline_tokenizer(model)


def offline_tokenizer(model: ModelSettings) -> Tokenizer:
    """Return the most exact tokenizer available without an engine: the model's file, or an approximation.

    Raises EngineError if `model.tokenizer` cannot be used.
    """
    path = tokenizer_file(model)
    return FileTokenizer(path) if path is not None else ApproximateTokenizer()


def tokenizer_guesses(model: ModelSettings) -> list[Tokenizer]:
    """Return the model's tokenizer if it is known without an engine; else an approximation, and the least and the most tokens
    that a text can have."""
    known = offline_tokenizer(model)
    return [known] if known.exact else [known, ApproximateTokenizer(8.0), ApproximateTokenizer(1.0)]
