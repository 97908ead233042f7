"""The workload `unique`: prompts of exact length that share nothing, so that no prefix cache can help."""

from collections.abc import Sequence

from servebench.contracts.request import Request, Tokenizer
from servebench.util.errors import ConfigError
from servebench.workload.build.fill import FillingWorkload
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.requests import as_requests
from servebench.workload.build.seeding import SALT_TOKENS_MAX, generator, salt

DEFAULT_INPUT_TOKENS = 128
DEFAULT_OUTPUT_TOKENS = 64


class UniqueWorkload(FillingWorkload):
    """Random words after a salt. With an exact tokenizer each prompt has exactly `input_tokens`, not counting the template.

    Prompts shorter than their salt (8 to 12 tokens) are only a part of it, and may begin alike.
    """

    name = "unique"
    reference_keys = ()
    draws_lengths = True

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests, no two alike. Raises ConfigError when the prompts are too short for that."""
        settings = self.settings
        rng = generator(settings.seed, stream)
        lengths = sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, count, rng, floor=SALT_TOKENS_MAX)
        outputs = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, count, rng)
        salts = [salt(settings.seed, stream, index) for index in range(count)]
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
