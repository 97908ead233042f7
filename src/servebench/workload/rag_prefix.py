"""The workload `rag_prefix`: questions about a few documents, so that a prefix cache can help as far as they are shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.lengths import sample_lengths
from servebench.workload.salt import SALT_TOKENS_MAX, as_request, generator, salt
from servebench.workload.unique import WordList, fill

DEFAULT_INPUT_TOKENS = 512
DEFAULT_OUTPUT_TOKENS = 64

DOCUMENTS = "documents"
"""Name of the stream that documents come from; that of a level never is so."""


@dataclass(frozen=True, kw_only=True)
class RagPrefixSettings(WorkloadSettings):
    """`documents` is how many there are; `share` the part of `input_tokens` that is the document, the rest being the
    question; `skew` the Zipf exponent of their popularity (0: all alike). An `input_tokens` that is a distribution is
    drawn once a document: all questions about it make prompts of the same length."""

    documents: Annotated[int, Ge(1)] = 8
    share: Annotated[float, Ge(0), Le(0.95)] = 0.75
    skew: Annotated[float, Ge(0)] = 0.0
    exact_output: bool = True


class RagPrefixWorkload(Workload):
    """Prompts that are a document of exactly `round(share * input_tokens)` tokens followed by a question of its own.

    Documents follow from the seed alone, so that warm-up and all points share them. With `cache` `cold` each stream has
    documents of its own: nothing that was asked before the stream helps, while within it the sharing holds.
    """

    name = "rag_prefix"
    settings_type = RagPrefixSettings
    reference_keys = ()

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__(settings)
        assert isinstance(settings, RagPrefixSettings)
        self._settings = settings
        self._words = WordList()

    def check(self) -> list[str]:
        """A document or a question too short to be told from the others."""
        for total in sorted(set(self._totals())):
            document = prefix_tokens(total, self._settings.share)
            asked = f"workload.share={self._settings.share:g} of workload.input_tokens={total}"
            if 0 < document < SALT_TOKENS_MAX:
                return [
                    f"{asked} makes documents of {document} tokens; at least {SALT_TOKENS_MAX} are needed to tell them "
                    "apart: raise workload.input_tokens, or set workload.share=0"
                ]
            if total - document < SALT_TOKENS_MAX:
                return [
                    f"{asked} leaves {total - document} tokens for the question; at least {SALT_TOKENS_MAX} are needed "
                    "to make each unique: raise workload.input_tokens or lower workload.share"
                ]
        return []

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """`count` requests, no two alike. Raises ConfigError as `check` does."""
        if faults := self.check():
            raise ConfigError(faults)
        settings = self._settings
        chosen = self.chosen(count, stream=stream)
        totals = self._totals()
        documents = self._documents(sorted(set(chosen)), totals, stream, tokenizer)
        rng = generator(settings.seed, f"{stream}/questions")
        outputs = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, count, rng)
        starts = [documents[which] + salt(settings.seed, stream, index) for index, which in enumerate(chosen)]
        lengths = [totals[which] for which in chosen]
        texts, counts = fill(starts, lengths, rng, tokenizer, words=self._words.of(tokenizer))
        return [
            as_request(
                texts[index],
                settings.api,
                f"{stream}-{index:05d}",
                output_tokens=outputs[index],
                exact_output=settings.exact_output,
                temperature=settings.temperature,
                prompt_tokens=counts[index],
            )
            for index in range(count)
        ]

    def chosen(self, count: int, *, stream: str) -> list[int]:
        """Which document (from 0, most popular first) each of the stream's requests is about."""
        settings = self._settings
        rng = generator(settings.seed, stream)
        return rng.choices(range(settings.documents), zipf(settings.documents, settings.skew), k=count)

    def _totals(self) -> list[int]:
        """Tokens of a prompt about each document."""
        settings = self._settings
        rng = generator(settings.seed, f"{DOCUMENTS}/lengths")
        return sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, settings.documents, rng)

    def _documents(
        self, wanted: Sequence[int], totals: Sequence[int], stream: str, tokenizer: Tokenizer
    ) -> dict[int, str]:
        """What comes before the question, for each document that is wanted: its text and an empty line, or nothing."""
        settings = self._settings
        owner = f"{DOCUMENTS}/{stream}" if settings.cache == "cold" else DOCUMENTS
        texts = {}
        for which in wanted:
            length = prefix_tokens(totals[which], settings.share)
            if length == 0:
                texts[which] = ""
                continue
            # a generator for each, so that a document does not depend on which others are wanted
            rng = generator(settings.seed, f"{owner}/{which}")
            start = salt(settings.seed, owner, which)
            (text,), _ = fill([start], [length], rng, tokenizer, words=self._words.of(tokenizer))
            texts[which] = f"{text}\n\n"
        return texts


def prefix_tokens(total_tokens: int, share: float) -> int:
    """Tokens of the document in a prompt of this length."""
    return round(share * total_tokens)


def zipf(documents: int, skew: float) -> list[float]:
    """Popularity of each document, summing to 1: p(k) proportional to 1 / k^skew for k = 1, 2, ... (Zipf's law)."""
    weights = [float(k) ** -skew for k in range(1, documents + 1)]
    return [weight / sum(weights) for weight in weights]


def ideal_hit_rate(documents: Sequence[int], prefix_tokens: int, total_tokens: int) -> float:
    """The part of all prompt tokens that an infinite cache, empty at first, would have: 0 to 1.

    `documents` says which document each request is about, in order. The cache keeps every prefix for ever: all but
    the first request about a document find its `prefix_tokens` tokens there, and no question is found:
    (requests - distinct documents) * prefix_tokens / (requests * total_tokens). An engine's own figure is lower where it
    caches whole blocks only, evicts, or meets two first requests at once. Raises ValueError for no requests, and for
    prefixes longer than prompts.
    """
    if not documents:
        raise ValueError("no requests: there is no hit rate")
    if not 0 <= prefix_tokens <= total_tokens or total_tokens == 0:
        raise ValueError(f"a prefix of {prefix_tokens} tokens does not fit into {total_tokens}")
    return (len(documents) - len(set(documents))) * prefix_tokens / (len(documents) * total_tokens)
