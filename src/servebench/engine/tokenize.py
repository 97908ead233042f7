"""Who counts tokens for a workload: the engine itself, the model's tokenizer file, or a stated approximation."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from servebench.contracts.engine import Engine, RunningEngine
from servebench.contracts.request import Tokenizer
from servebench.contracts.settings import ModelSettings
from servebench.engine.supervisor.answers import json_of, reason_of
from servebench.protocol.errors import error_text
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError

CHARACTERS_PER_TOKEN = 4.0
"""English text in common byte-pair vocabularies: about four characters a token (OpenAI's tokenizer help page)."""

PARALLEL = 8


class ApproximateTokenizer:
    """No tokenizer is known: one token for each four characters, and a doubt that says so."""

    name = "approximate (4 characters a token)"
    exact = False

    def count(self, texts: Sequence[str]) -> list[int]:
        """A quarter of the characters, at least one for a text that is not empty."""
        return [max(1, round(len(text) / CHARACTERS_PER_TOKEN)) if text else 0 for text in texts]

    def truncate(self, text: str, tokens: int) -> str:
        """The first four characters a token."""
        return text[: int(tokens * CHARACTERS_PER_TOKEN)]


class EmulatedTokenizer(ApproximateTokenizer):
    """What an emulated engine counts with: every four characters, begun or whole, are a token."""

    name = "emulated (4 characters a token)"
    exact = True

    def count(self, texts: Sequence[str]) -> list[int]:
        """A quarter of the characters, rounded up."""
        return [math.ceil(len(text) / CHARACTERS_PER_TOKEN) for text in texts]


class _Exact:
    """Truncation by bisection over characters: token counts grow with the text but for a token or two at the cut."""

    exact = True

    def count(self, texts: Sequence[str]) -> list[int]:
        raise NotImplementedError

    def truncate(self, text: str, tokens: int) -> str:
        """The longest prefix of at most this many tokens, found with few counts."""
        if self.count([text])[0] <= tokens:
            return text
        low, high = 0, len(text)
        while high - low > 1:
            step = max(1, (high - low) // PARALLEL)
            places = list(range(low + step, high, step))
            counts = self.count([text[:place] for place in places])
            fitting = [place for place, count in zip(places, counts, strict=True) if count <= tokens]
            low = max(fitting, default=low)
            high = min((place for place in places if place > low), default=high)
        return text[:low]


def _release(pool: ThreadPoolExecutor, http: httpx.Client) -> None:
    pool.shutdown(wait=False)
    http.close()


class EngineTokenizer(_Exact):
    """The engine's own tokenize endpoint."""

    name = "engine"

    def __init__(self, url: str, headers: Sequence[tuple[str, str]], *, verify_tls: bool) -> None:
        self._url = url
        self._http = client(headers, verify_tls=verify_tls, timeout_s=60.0)
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="tokenize")
        # nobody is told when counting is over; connections and threads go with the object
        weakref.finalize(self, _release, self._pool, self._http)

    def _one(self, text: str) -> int:
        try:
            response = self._http.post(self._url, json={"content": text, "add_special": False})
        except httpx.HTTPError as error:
            raise EngineError(f"cannot count tokens at {self._url}: {reason_of(error)}") from error
        if response.status_code != httpx.codes.OK:
            raise EngineError(
                f"cannot count tokens: {self._url} answers {response.status_code}: {error_text(response.content)}"
            )
        try:
            return len(json_of(response)["tokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"cannot count tokens: {self._url} answers without a list of tokens: {error_text(response.content)}"
            ) from error

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without special tokens. Raises EngineError when the engine does not answer."""
        return list(self._pool.map(self._one, texts))


class FileTokenizer(_Exact):
    """A `tokenizer.json` of the model, read by the package `tokenizers`."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises EngineError when it is no such file, ImportError without the package."""
        from tokenizers import Tokenizer as Reader

        self.name = str(path)
        try:
            self._reader = Reader.from_file(str(path))
        except Exception as error:  # the package raises nothing narrower
            raise EngineError(f"{path} is no tokenizer.json that the package tokenizers can read: {error}") from error

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without special tokens."""
        return [len(one.ids) for one in self._reader.encode_batch(list(texts), add_special_tokens=False)]


def tokenizer_file(model: ModelSettings) -> Path | None:
    """The model's `tokenizer.json`: the one that is named, else one in the model's folder; None when there is none.

    Raises EngineError when the one that is named is not there.
    """
    if model.tokenizer is not None:
        named = Path(model.tokenizer).expanduser()
        named = named / "tokenizer.json" if named.is_dir() else named
        if not named.is_file():
            raise EngineError(
                f"model.tokenizer={model.tokenizer}: there is no file {named}; give a tokenizer.json or its folder"
            )
        return named
    if model.path is not None:
        beside = Path(model.path).expanduser() / "tokenizer.json"
        return beside if beside.is_file() else None
    return None


def _file_tokenizer(model: ModelSettings) -> FileTokenizer | None:
    path = tokenizer_file(model)
    if path is None:
        return None
    try:
        return FileTokenizer(path)
    except ImportError as error:
        if model.tokenizer is None:
            return None
        raise EngineError(
            f"model.tokenizer={model.tokenizer}: reading it needs a package: pip install 'servebench-suite[tokenizers]'"
        ) from error


def engine_tokenizer(engine: Engine, running: RunningEngine, model: ModelSettings) -> Tokenizer:
    """The most exact tokenizer that is to be had: the engine's endpoint, the model's file, else an approximation.

    Raises EngineError when `model.tokenizer` names a file that cannot be used.
    """
    known: Tokenizer | None = getattr(running, "tokenizer", None)
    if known is not None:
        return known
    if engine.tokenize_path is not None:
        tokenizer = EngineTokenizer(
            running.root_url + engine.tokenize_path, running.headers, verify_tls=running.verify_tls
        )
        try:
            tokenizer.count(["one two"])
        except EngineError:
            # an older build of the engine, or a proxy in front of it, may not have the path: others can count
            pass
        else:
            return tokenizer
    return offline_tokenizer(model)


def offline_tokenizer(model: ModelSettings) -> Tokenizer:
    """The most exact tokenizer that is to be had without an engine: the model's file, else an approximation.

    Raises EngineError when `model.tokenizer` names a file that cannot be used.
    """
    return _file_tokenizer(model) or ApproximateTokenizer()
