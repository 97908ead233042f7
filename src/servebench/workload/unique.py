"""The workload `unique`: prompts of exact length that share nothing, so that no prefix cache can help."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.settings import LengthSettings, WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.build.fill import FillingWorkload
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.requests import as_requests
from servebench.workload.build.seeding import SALT_TOKENS_MAX, generator, salt

DEFAULT_INPUT_TOKENS = 128
DEFAULT_OUTPUT_TOKENS = 64
BLOCKS = (128, 64, 32, 16)
"""Sizes of blocks that prefix caches keep; vLLM's is 16, and 128 on a CPU."""
LENGTH_SLACK = 0.1
"""How much longer or shorter prompts may become for larger blocks, as a share."""
HIT_TOKENS_MIN = 50
"""In shorter prompts two tokens more or less are more than two points."""
PREFIX = "prefix"
"""The stream of the beginning that all prompts share with a `hit_rate`."""


@dataclass(frozen=True, kw_only=True)
class UniqueSettings(WorkloadSettings):
    """`hit_rate` is the share of each prompt that a prefix cache finds: all prompts share a beginning of that length, which the
    warm-up has left in the cache. Null and 0: prompts share nothing."""

    hit_rate: Annotated[float, Ge(0), Le(0.99)] | None = None


class UniqueWorkload(FillingWorkload):
    """Random words after a salt. With an exact tokenizer each prompt has exactly `input_tokens`, not counting the template.

    Prompts shorter than their salt (8 to 12 tokens) are only a part of it, and may begin alike. With a `hit_rate` each begins
    with the same whole blocks of a cache, and is made longer or shorter by a few tokens so that these are that share of it.
    """

    name = "unique"
    settings: UniqueSettings
    settings_type = UniqueSettings
    draws_lengths = True

    def check(self) -> list[str]:
        """Report a `hit_rate` for prompts of different or too short lengths, and one that the warm-up cannot prime."""
        settings, rate = self.settings, self.settings.hit_rate
        if not rate:
            return []
        if isinstance(settings.input_tokens, LengthSettings):
            return [f"workload.hit_rate={rate:g} needs prompts of one length; set workload.input_tokens to a number"]
        if settings.cache == "cold":
            return [
                f"workload.hit_rate={rate:g} needs what the warm-up leaves in the cache; leave workload.cache at as_is"
            ]
        prefix, total = self._split()
        if prefix and total - prefix > SALT_TOKENS_MAX and total >= HIT_TOKENS_MIN:
            return []
        block = BLOCKS[-1]
        least = math.ceil(
            max(block / rate, (SALT_TOKENS_MAX + block / 2 + 1) / (1 - rate), HIT_TOKENS_MIN + block / 2 / rate)
        )
        return [
            f"workload.hit_rate={rate:g} of workload.input_tokens={self._tokens} leaves no room for a block of {block} "
            f"tokens and a unique rest of {SALT_TOKENS_MAX}; set workload.input_tokens={least} or more"
        ]

    @property
    def _tokens(self) -> int:
        """The tokens of a prompt, where all have one length."""
        tokens = self.settings.input_tokens or DEFAULT_INPUT_TOKENS
        assert isinstance(tokens, int)
        return tokens

    def _split(self) -> tuple[int, int]:
        """Return the tokens of the shared beginning that a cache of whole blocks keeps, and of a prompt; (0, 0) for none.

        Caches keep blocks of up to 128 tokens: the largest that does not change the length much is taken. The beginning has one
        token more, for a tokenizer may join its last one with what follows, and the rest may begin alike: half of both is in
        the rate.
        """
        rate = self.settings.hit_rate or 0.0
        for block in BLOCKS if rate else ():
            prefix = round(rate * self._tokens / block) * block
            total = round((prefix + 1) / rate)
            fits = abs(total - self._tokens) <= LENGTH_SLACK * self._tokens and total - prefix > SALT_TOKENS_MAX
            if fits or block == BLOCKS[-1]:
                return prefix, total
        return 0, 0

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests, no two alike. Raises ConfigError when the prompts are too short for that."""
        settings = self.settings
        rng = generator(settings.seed, stream)
        prefix, total = self._split()
        wanted = total or settings.input_tokens or DEFAULT_INPUT_TOKENS
        lengths = sample_lengths(wanted, count, rng, floor=SALT_TOKENS_MAX)
        outputs = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, count, rng)
        salts = [salt(settings.seed, stream, index) for index in range(count)]
        if prefix:
            start = salt(settings.seed, PREFIX, prefix)
            (shared,), _ = self.fill([start], [prefix + 1], generator(settings.seed, PREFIX), tokenizer)
            salts = [f"{shared} {one}" for one in salts]
        texts, counts = self.fill(salts, lengths, rng, tokenizer)
        if alike := count - len(set(texts)):
            raise ConfigError(
                f"workload.input_tokens: {alike} of {count} prompts are equal to another one at only {min(lengths)} tokens; "
                f"set it to {SALT_TOKENS_MAX} or more (as min of a distribution)"
            )
        return as_requests(settings, stream, texts, prompt_tokens=counts, output_tokens=outputs)


class ShortWorkload(UniqueWorkload):
    """Prompts and answers of a few words, for a first look: a slow engine answers many in a minute."""

    name = "short"


class MediumWorkload(UniqueWorkload):
    """Prompts and answers of a usual length."""

    name = "medium"
