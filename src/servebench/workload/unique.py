"""The workload `unique`: prompts of exact length that share nothing, so that no prefix cache can help."""

from __future__ import annotations

import random
from collections.abc import Sequence

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.lengths import sample_lengths
from servebench.workload.prompts import vocabulary
from servebench.workload.salt import SALT_TOKENS_MAX, as_request, generator, salt

DEFAULT_INPUT_TOKENS = 128
DEFAULT_OUTPUT_TOKENS = 64
ROUNDS_MAX = 12


class UniqueWorkload(Workload):
    """Random words behind a salt. With an exact tokenizer each prompt has exactly `input_tokens` (chat template left out).

    Prompts shorter than their salt (some 8 to 12 tokens) are a part of it only, and may begin alike.
    """

    name = "unique"
    reference_keys = ()

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__(settings)
        self._words = WordList()

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """`count` requests, no two alike. Raises ConfigError when the prompts are too short for that."""
        settings = self.settings
        rng = generator(settings.seed, stream)
        lengths = sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, count, rng)
        outputs = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, count, rng)
        salts = [salt(settings.seed, stream, index) for index in range(count)]
        texts, counts = fill(salts, lengths, rng, tokenizer, words=self._words.of(tokenizer))
        if alike := count - len(set(texts)):
            raise ConfigError(
                f"workload.input_tokens: {alike} of {count} prompts would be the same as another, with as few as "
                f"{min(lengths)} tokens; give {SALT_TOKENS_MAX} tokens or more (as min of a distribution)"
            )
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


class WordList:
    """The words to fill prompts with, asked of a tokenizer once: an engine that counts takes a call for each word."""

    def __init__(self) -> None:
        self._known: tuple[Tokenizer, list[str]] | None = None

    def of(self, tokenizer: Tokenizer) -> list[str]:
        """As `single_token_words`, remembered for the tokenizer last asked."""
        if self._known is None or self._known[0] is not tokenizer:
            self._known = tokenizer, single_token_words(tokenizer)
        return self._known[1]


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """Words that are one token behind a blank; all words where that cannot be known."""
    words = vocabulary()
    if not tokenizer.exact:
        return words
    counts = tokenizer.count([f"the {word}" for word in words])
    one = tokenizer.count(["the"])[0]
    return [word for word, count in zip(words, counts, strict=True) if count == one + 1] or words


def fill(
    starts: Sequence[str],
    lengths: Sequence[int],
    rng: random.Random,
    tokenizer: Tokenizer,
    *,
    words: Sequence[str] | None = None,
    ends: Sequence[str] | None = None,
) -> tuple[list[str], list[int]]:
    """Each start followed by random words up to its length in tokens, and the lengths reached.

    Words that are a token each make the first guess right; with others, what is off is mended in a few rounds and
    then cut. A start that is longer than its length is cut to it. `ends` come after the words and count too; where a
    tokenizer has no words that fit exactly, it is what stands before them that is cut.
    """
    words = single_token_words(tokenizer) if words is None else words
    ends = [""] * len(starts) if ends is None else ends
    bodies: list[list[str]] = [[] for _ in starts]
    texts = [start + end for start, end in zip(starts, ends, strict=True)]
    start_counts = tokenizer.count(texts)
    counts = list(start_counts)
    for _ in range(ROUNDS_MAX):
        wrong = [i for i, length in enumerate(lengths) if counts[i] < length or (counts[i] > length and bodies[i])]
        if not wrong:
            break
        for i in wrong:
            per_word = max(1.0, (counts[i] - start_counts[i]) / len(bodies[i])) if bodies[i] else 1.0
            _resize(bodies[i], lengths[i] - counts[i], per_word, words, rng)
            texts[i] = " ".join([starts[i], *bodies[i]]) + ends[i]
        _recount(texts, counts, wrong, tokenizer)
    wrong = [i for i, length in enumerate(lengths) if counts[i] != length]
    for i in wrong:
        front = " ".join([starts[i], *bodies[i], *(rng.choice(words) for _ in range(lengths[i] - counts[i]))])
        room = lengths[i] - tokenizer.count([ends[i]])[0] if ends[i] else lengths[i]
        texts[i] = tokenizer.truncate(front, room) + ends[i]
    _recount(texts, counts, wrong, tokenizer)
    return texts, counts


def _resize(body: list[str], gap_tokens: int, per_word: float, words: Sequence[str], rng: random.Random) -> None:
    """Add or take words worth the gap, at least one."""
    change = max(1, round(abs(gap_tokens) / per_word))
    if gap_tokens > 0:
        body += rng.choices(words, k=change)
    else:
        del body[-min(change, len(body)) :]


def _recount(texts: Sequence[str], counts: list[int], which: Sequence[int], tokenizer: Tokenizer) -> None:
    """Count again those texts that were changed."""
    if which:
        for i, found in zip(which, tokenizer.count([texts[i] for i in which]), strict=True):
            counts[i] = found
