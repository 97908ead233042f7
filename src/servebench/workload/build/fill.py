"""Fill prompts with random words up to an exact number of tokens."""

import random
from collections.abc import Sequence
from typing import ClassVar

from servebench.contracts.request import Tokenizer, Workload
from servebench.workload.sources.prompts import vocabulary

ROUNDS_MAX = 12


class FillingWorkload(Workload):
    """Base of the workloads that fill prompts with random words."""

    reference_keys: ClassVar[tuple[str, ...] | None] = ()
    _words: tuple[Tokenizer, list[str]] | None = None

    def fill(
        self,
        starts: Sequence[str],
        lengths: Sequence[int],
        rng: random.Random,
        tokenizer: Tokenizer,
        ends: Sequence[str] | None = None,
    ) -> tuple[list[str], list[int]]:
        """Call `fill` with words cached for one tokenizer: an engine that counts takes a call for each word."""
        if self._words is None or self._words[0] is not tokenizer:
            self._words = tokenizer, single_token_words(tokenizer)
        return fill(starts, lengths, rng, tokenizer, words=self._words[1], ends=ends)


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """Return the words that are one token after a space; all words where the tokenizer cannot tell."""
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
    """Return each start followed by random words up to its length in tokens, and the lengths reached.

    Words of one token each make the first guess right; with others, what is missing or too much is corrected in a few
    rounds and then cut. A start that is longer than its length is cut to it. `ends` come after the words and count too;
    where a tokenizer has no words that fit exactly, the text before the end is cut.
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
    """Add or remove the words that make up the gap, at least one."""
    change = max(1, round(abs(gap_tokens) / per_word))
    if gap_tokens > 0:
        body += rng.choices(words, k=change)
    else:
        del body[-min(change, len(body)) :]


def _recount(texts: Sequence[str], counts: list[int], indexes: Sequence[int], tokenizer: Tokenizer) -> None:
    """Update the counts of the texts at these indexes."""
    if indexes:
        for i, count in zip(indexes, tokenizer.count([texts[i] for i in indexes]), strict=True):
            counts[i] = count
