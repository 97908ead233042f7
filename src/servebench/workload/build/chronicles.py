"""Requests with a long chronicle: what `long_context` and `summarization` share."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.settings import LengthSettings
from servebench.util.errors import ConfigError
from servebench.workload.build.fill import FillingWorkload
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.requests import as_requests
from servebench.workload.build.seeding import generator
from servebench.workload.sources.prose import sentence

ROOM_TOKENS_MIN = 32
"""The least tokens of chronicle around the facts."""
SAMPLE = 48
"""Sentences on which the tokens of the prose are measured."""


@dataclass(frozen=True)
class Draft:
    """A text up to where it is filled, its end, the facts in it, and its whole length in tokens."""

    start: str
    end: str
    facts: Sequence[Any]
    tokens: int


class ChronicleWorkload(FillingWorkload):
    """Base of the workloads that hide facts in a chronicle of exactly the requested length."""

    default_input_tokens: ClassVar[int]
    default_output_tokens: ClassVar[int]
    _per_character: tuple[Tokenizer, float] | None = None
    """The tokens per character of its prose, by a tokenizer."""

    def draft(self, index: int, length: int, stream: str, rng: random.Random, tokenizer: Tokenizer) -> Draft:
        """Return a prompt of a little less than `length` tokens. Raises ConfigError when the facts do not fit."""
        raise NotImplementedError

    def length_for(self, length: int, used: int, what: str) -> int:
        """Return the length of a prompt whose facts take `used` tokens: the one that was drawn, or the least if it is the tail
        of a distribution. Raises ConfigError when the facts do not fit."""
        least = used + ROOM_TOKENS_MIN
        spec = self.settings.input_tokens
        if length >= least or (isinstance(spec, LengthSettings) and not spec.bounded and spec.longest >= least):
            return max(length, least)
        raise ConfigError(f"workload.input_tokens={length} leaves no room for {what}; set it to {least} or more")

    def sentences_that_fit(
        self, tokens: int, limit: int, prompt: Callable[[list[str]], str], rng: random.Random, tokenizer: Tokenizer
    ) -> list[str]:
        """Return sentences of about `tokens`: 2% and one sentence less, which leaves room for an end.

        They are trimmed until the `prompt` made of them has at most `limit` tokens.
        """
        if self._per_character is None or self._per_character[0] is not tokenizer:
            fixed = random.Random("servebench prose")
            sample = " ".join(sentence(fixed) for _ in range(SAMPLE))
            self._per_character = tokenizer, tokenizer.count([sample])[0] / len(sample)
        left = tokens * 0.98 / self._per_character[1]
        sentences: list[str] = []
        while (left := left - len(new := sentence(rng)) - 1) >= 0:
            sentences.append(new)
        # the sentences of a long text are a little longer or shorter than the measured mean
        while sentences and tokenizer.count([prompt(sentences)])[0] > limit:
            del sentences[-max(1, len(sentences) // 50) :]
        return sentences

    def reference(self, text: str, draft: Draft) -> Mapping[str, Any]:
        """Return what a scorer needs to know of the prompt `text`."""
        raise NotImplementedError

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests, no two with a common beginning. Raises ConfigError when the facts do not fit."""
        settings = self.settings
        rng = generator(settings.seed, stream)
        lengths = sample_lengths(settings.input_tokens or self.default_input_tokens, count, rng)
        outputs = sample_lengths(settings.output_tokens or self.default_output_tokens, count, rng)
        drafts = [
            self.draft(index, lengths[index], stream, generator(settings.seed, f"{stream}/{index}"), tokenizer)
            for index in range(count)
        ]
        texts, counts = self.fill(
            [one.start for one in drafts], [one.tokens for one in drafts], rng, tokenizer, [one.end for one in drafts]
        )
        known = [self.reference(text, draft) for text, draft in zip(texts, drafts, strict=True)]
        return as_requests(settings, stream, texts, prompt_tokens=counts, output_tokens=outputs, reference=known)
