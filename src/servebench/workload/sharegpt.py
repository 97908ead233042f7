"""The workload `sharegpt`: real prompts, from the set that ships with servebench, a file or the hub."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated

from annotated_types import Ge

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.requests import as_requests
from servebench.workload.build.seeding import generator, salt
from servebench.workload.sources.prompts import Prompt, dataset_faults, load_prompts

DEFAULT_OUTPUT_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class ShareGptSettings(WorkloadSettings):
    """`dataset` is `builtin`, a path, or `hf:` and the name of a data set of the Hugging Face hub with its `subset` and
    `split`; `path`, if given, takes precedence. Prompts outside the two limits (in tokens, without a salt) are left out.
    With `input_tokens` a length is drawn for each request, and the prompt of the nearest length is used unchanged."""

    dataset: str = "builtin"
    path: str | None = None
    subset: str | None = None
    split: str = "train"
    min_prompt_tokens: Annotated[int, Ge(1)] | None = None
    max_prompt_tokens: Annotated[int, Ge(1)] | None = None


class ShareGptWorkload(Workload):
    """First turns of conversations. If there are fewer prompts than requests, the set is used again in another order: such
    repeats can hit a prefix cache, unless `cache` is `cold`, which puts a salt before each prompt.
    """

    name = "sharegpt"
    settings: ShareGptSettings
    settings_type = ShareGptSettings
    reference_keys = ()

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__(settings)
        self._cached: tuple[list[Prompt], list[int]] | None = None

    def check(self) -> list[str]:
        """Report a data set that cannot be read, and limits that exclude each other."""
        settings = self.settings
        faults = dataset_faults(self._source(), self._key())
        low, high = settings.min_prompt_tokens, settings.max_prompt_tokens
        if low is not None and high is not None and low > high:
            faults.append(f"workload.min_prompt_tokens={low} is more than workload.max_prompt_tokens={high}; swap them")
        return faults

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests in an order of the stream's own. Raises ConfigError when no prompt fits the limits."""
        settings = self.settings
        rng = generator(settings.seed, stream)
        prompts, lengths = self._prompts(tokenizer)
        if settings.input_tokens is None:
            chosen = _cycle(len(prompts), count, rng)
        else:
            chosen = _nearest(lengths, sample_lengths(settings.input_tokens, count, rng), rng)
        outputs = self._outputs(prompts, chosen, rng, tokenizer)
        texts = [prompts[number].text for number in chosen]
        counts = [lengths[number] for number in chosen]
        if settings.cache == "cold":
            texts = [f"[{salt(settings.seed, stream, index)}]\n{text}" for index, text in enumerate(texts)]
            counts = tokenizer.count(texts)
        return as_requests(settings, stream, texts, prompt_tokens=counts, output_tokens=outputs)

    def _source(self) -> str:
        return self.settings.path or self.settings.dataset

    def _key(self) -> str:
        """Return the setting that names the data set."""
        return "workload.path" if self.settings.path else "workload.dataset"

    def _prompts(self, tokenizer: Tokenizer) -> tuple[list[Prompt], list[int]]:
        """Return the prompts within the limits, and their lengths."""
        if self._cached is None:
            settings = self.settings
            everything = load_prompts(self._source(), settings.subset, settings.split, self._key())
            counts = tokenizer.count([prompt.text for prompt in everything])
            low, high = settings.min_prompt_tokens or 0, settings.max_prompt_tokens
            kept = [
                (prompt, count)
                for prompt, count in zip(everything, counts, strict=True)
                if low <= count and (high is None or count <= high)
            ]
            if not kept:
                limits = f"{low} tokens or more" if high is None else f"{low} to {high} tokens"
                raise ConfigError(
                    f"{self._key()}={self._source()} has no prompt of {limits} (its prompts have {min(counts)} to "
                    f"{max(counts)}); change workload.min_prompt_tokens or workload.max_prompt_tokens"
                )
            self._cached = [prompt for prompt, _ in kept], [count for _, count in kept]
        return self._cached

    def _outputs(
        self, prompts: Sequence[Prompt], chosen: Sequence[int], rng: random.Random, tokenizer: Tokenizer
    ) -> list[int]:
        """Return the requested output lengths, else those of the data set's own answers, else a default."""
        if self.settings.output_tokens is not None:
            return sample_lengths(self.settings.output_tokens, len(chosen), rng)
        answers = [prompts[number].answer or "" for number in chosen]
        return [count or DEFAULT_OUTPUT_TOKENS for count in tokenizer.count(answers)]


def _cycle(size: int, count: int, rng: random.Random) -> list[int]:
    """Return `count` indexes below `size`: all in a random order, then all again in another."""
    chosen: list[int] = []
    while len(chosen) < count:
        chosen += rng.sample(range(size), size)
    return chosen[:count]


def _nearest(lengths: Sequence[int], wanted: Sequence[int], rng: random.Random) -> list[int]:
    """Return the index of the nearest length for each wanted one, a random one of equals; each is used once before any twice."""
    chosen: list[int] = []
    pool: list[tuple[int, int]] = []
    for target in wanted:
        if not pool:
            pool = sorted(((length, index) for index, length in enumerate(lengths)), key=itemgetter(0))
        above = bisect_left(pool, target, key=itemgetter(0))
        gap = min(abs(pool[place][0] - target) for place in (above - 1, above) if 0 <= place < len(pool))
        low = bisect_left(pool, target - gap, key=itemgetter(0))
        high = bisect_right(pool, target + gap, key=itemgetter(0))
        nearest = [place for place in range(low, high) if abs(pool[place][0] - target) == gap]
        chosen.append(pool.pop(rng.choice(nearest))[1])
    return chosen
