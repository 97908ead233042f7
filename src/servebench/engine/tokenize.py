"""Who counts tokens for a workload: the engine itself, the model's tokenizer file, or a stated approximation."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from servebench.contracts.engine import Engine, RunningEngine
from servebench.contracts.request import Tokenizer
from servebench.contracts.settings import ModelSettings
from servebench.engine.answers import client, reason_of, said
from servebench.errors import EngineError

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


class EngineTokenizer(_Exact):
    """The engine's own tokenize endpoint."""

    name = "engine"

    def __init__(self, url: str, headers: Sequence[tuple[str, str]], *, verify_tls: bool) -> None:
        self._url = url
        self._http = client(headers, verify_tls=verify_tls, timeout_s=60.0)
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="tokenize")

    def _one(self, text: str) -> int:
        try:
            response = self._http.post(self._url, json={"content": text, "add_special": False})
        except httpx.HTTPError as error:
            raise EngineError(f"cannot count tokens at {self._url}: {reason_of(error)}") from error
        if response.status_code != httpx.codes.OK:
            raise EngineError(f"cannot count tokens: {self._url} answers {response.status_code}: {said(response)}")
        tokens: list[Any] = response.json()["tokens"]
        return len(tokens)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without special tokens. Raises EngineError when the engine does not answer."""
        return list(self._pool.map(self._one, texts))


class FileTokenizer(_Exact):
    """A `tokenizer.json` of the model, read by the package `tokenizers`."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Reader

        self.name = str(path)
        self._reader = Reader.from_file(str(path))

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without special tokens."""
        return [len(one.ids) for one in self._reader.encode_batch(list(texts), add_special_tokens=False)]


def _file_tokenizer(model: ModelSettings) -> FileTokenizer | None:
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        return None
    for place in (model.tokenizer, model.path):
        if place is not None:
            path = Path(place).expanduser()
            path = path / "tokenizer.json" if path.is_dir() else path
            if path.name.endswith(".json") and path.is_file():
                return FileTokenizer(path)
    return None


def engine_tokenizer(engine: Engine, running: RunningEngine, model: ModelSettings) -> Tokenizer:
    """The most exact tokenizer that is to be had: the engine's endpoint, the model's file, else an approximation."""
    if engine.tokenize_path is not None:
        tokenizer = EngineTokenizer(running.root_url + engine.tokenize_path, running.headers, verify_tls=running.verify_tls)
        try:
            tokenizer.count(["one two"])
        except (EngineError, KeyError, ValueError):
            pass
        else:
            return tokenizer
    return _file_tokenizer(model) or ApproximateTokenizer()
