"""Count tokens for a workload: by the engine itself, by the model's tokenizer file, or by an approximation."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from servebench.contracts.engine import Engine, RunningEngine
from servebench.contracts.request import Tokenizer
from servebench.contracts.settings import ModelSettings
from servebench.engine.file_tokenizer import FileTokenizer
from servebench.util.errors import ConfigError, EngineError
from servebench.util.units import CHARACTERS_PER_TOKEN


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


def tokenizer_file(model: ModelSettings) -> Path | None:
    """Return the model's `tokenizer.json`: `model.tokenizer`, else the one in the model's folder or in the local cache of the
    Hugging Face hub; None if there is none. Raises ConfigError if `model.tokenizer` does not exist."""
    if model.tokenizer is not None:
        named = Path(model.tokenizer).expanduser()
        named = named / "tokenizer.json" if named.is_dir() else named
        if not named.is_file():
            raise ConfigError(
                f"model.tokenizer={model.tokenizer}: no file {named}; name a tokenizer.json or its folder"
            )
        return named
    if model.path is not None:
        file = Path(model.path).expanduser() / "tokenizer.json"
        return file if file.is_file() else None
    return _cached_file(model)


def _cached_file(model: ModelSettings) -> Path | None:
    """Return the file in the local cache of the Hugging Face hub, which an engine fills that downloads the model."""
    from huggingface_hub import constants

    # what reads the cache imports a web client and more: not for a model that is not there
    if not Path(constants.HF_HUB_CACHE, f"models--{model.name.replace('/', '--')}").is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model.name, "tokenizer.json", revision=model.revision)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def engine_tokenizer(
    engine: Engine, running: RunningEngine, model: ModelSettings, counts: dict[str, int] | None = None
) -> Tokenizer:
    """Return the first tokenizer that is available: the model's file, the engine's endpoint, or an approximation.

    The file is first because it is the same for all engines of a study. `counts` are what earlier starts of the engine have
    counted, and take what this one counts. Raises ConfigError if `model.tokenizer` does not exist,
    EngineError if the file cannot be read.
    """
    known: Tokenizer | None = getattr(running, "tokenizer", None)
    if known is not None:
        return known
    path = tokenizer_file(model)
    if path is not None:
        return FileTokenizer(path)
    if engine.tokenize_path is not None:
        from servebench.engine.supervisor.endpoint import EngineTokenizer

        tokenizer = EngineTokenizer(engine, running, counts)
        # an older version of the engine, or a proxy in front of it, may not have the path
        with suppress(EngineError):
            tokenizer.count(["one two"])
            return tokenizer
    return ApproximateTokenizer()


def offline_tokenizer(model: ModelSettings) -> Tokenizer:
    """Return the most exact tokenizer available without an engine: the model's file, or an approximation. Raises ConfigError if
    the file cannot be used."""
    path = tokenizer_file(model)
    try:
        return FileTokenizer(path) if path is not None else ApproximateTokenizer()
    except EngineError as error:
        raise ConfigError(str(error)) from error


def tokenizer_guesses(model: ModelSettings) -> list[Tokenizer]:
    """Return the model's tokenizer if it is known without an engine; else an approximation, and the least and the most tokens
    that a text can have. Raises ConfigError if the file cannot be used."""
    known = offline_tokenizer(model)
    return [known] if known.exact else [known, ApproximateTokenizer(8.0), ApproximateTokenizer(1.0)]
