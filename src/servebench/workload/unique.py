"""The workload `unique`: prompts of exact length that share nothing, so that no prefix cache can help."""

from __future__ import annotations

import random
from collections.abc import Sequence

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.workload.lengths import sample_lengths
from servebench.workload.prompts import vocabulary
from servebench.workload.salt import as_request, generator, salt

DEFAULT_INPUT_TOKENS = 128
DEFAULT_OUTPUT_TOKENS = 64
ROUNDS_MAX = 12


class UniqueWorkload(Workload):
    """Random words behind a salt. With an exact tokenizer each prompt has exactly `input_tokens` (chat template left out)."""

    name = "unique"

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """`count` requests; no two of any stream begin alike."""
        settings = self.settings
        rng = generator(settings.seed, stream)
        lengths = sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, count, rng)
        outputs = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, count, rng)
        salts = [salt(settings.seed, stream, index) for index in range(count)]
        texts, counts = fill(salts, lengths, rng, tokenizer)
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


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """Words that are one token behind a blank; all words where that cannot be known."""
    words = vocabulary()
    if not tokenizer.exact:
        return words
    counts = tokenizer.count([f"the {word}" for word in words])
    one = tokenizer.count(["the"])[0]
    return [word for word, count in zip(words, counts, strict=True) if count == one + 1] or words


def fill(
    starts: Sequence[str], lengths: Sequence[int], rng: random.Random, tokenizer: Tokenizer
) -> tuple[list[str], list[int]]:
    """Each start followed by random words up to its length in tokens, and the lengths reached.

    Words that are a token each make the first guess right but for the start; what is off is mended in a few rounds. A
    start that is longer than its length is cut to it.
    """
    words = single_token_words(tokenizer)
    bodies = [[rng.choice(words) for _ in range(length)] for length in lengths]
    texts = [" ".join([start, *body]) for start, body in zip(starts, bodies, strict=True)]
    counts = tokenizer.count(texts)
    for _ in range(ROUNDS_MAX):
        wrong = [index for index, length in enumerate(lengths) if counts[index] != length and bodies[index]]
        if not wrong:
            break
        for index in wrong:
            excess = counts[index] - lengths[index]
            if excess > 0:
                del bodies[index][-min(excess, len(bodies[index])) :]
            else:
                bodies[index] += [rng.choice(words) for _ in range(-excess)]
            texts[index] = " ".join([starts[index], *bodies[index]])
        for index, found in zip(wrong, tokenizer.count([texts[index] for index in wrong]), strict=True):
            counts[index] = found
        if not tokenizer.exact:
            break
    long = [index for index, length in enumerate(lengths) if counts[index] > length and not bodies[index]]
    for index in long:
        texts[index] = tokenizer.truncate(starts[index], lengths[index])
    for index, found in zip(long, tokenizer.count([texts[index] for index in long]) if long else [], strict=True):
        counts[index] = found
    return texts, counts
