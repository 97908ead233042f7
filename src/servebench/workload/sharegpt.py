"""The workload `sharegpt`: prompts of real people, from the set that ships with servebench or from a user's file."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.lengths import sample_lengths
from servebench.workload.prompts import Prompt, dataset_faults, load
from servebench.workload.salt import as_request, generator, salt

DEFAULT_OUTPUT_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class ShareGptSettings(WorkloadSettings):
    """`dataset` is `builtin`, a path, or `hf:` and the name of a data set of the Hugging Face hub, of which `subset` and
    `split` are taken; `path`, where given, is used in its place. Prompts shorter or longer than the two limits (in tokens,
    without any salt) are left out. With `input_tokens` a length is drawn for each request, and the prompt nearest to it
    in length is taken, as it is."""

    dataset: str = "builtin"
    path: str | None = None
    subset: str | None = None
    split: str = "train"
    min_prompt_tokens: Annotated[int, Ge(1)] | None = None
    max_prompt_tokens: Annotated[int, Ge(1)] | None = None


class ShareGptWorkload(Workload):
    """First turns of conversations. When more requests are asked for than there are prompts, the set is gone through again
    in another order: such repeats can hit a prefix cache, unless `cache` is `cold`, which puts a salt before each prompt.
    """

    name = "sharegpt"
    settings_type = ShareGptSettings
    reference_keys = ()

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__(settings)
        assert isinstance(settings, ShareGptSettings)
        self._settings = settings
        self._fitting: tuple[list[Prompt], list[int]] | None = None

    def check(self) -> list[str]:
        """A data set that is not there, limits that exclude each other."""
        settings = self._settings
        faults = dataset_faults(self._source(), self._key())
        low, high = settings.min_prompt_tokens, settings.max_prompt_tokens
        if low is not None and high is not None and low > high:
            faults.append(f"workload.min_prompt_tokens={low} is more than workload.max_prompt_tokens={high}; swap them")
        return faults

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """`count` requests in an order of the stream's own. Raises ConfigError when no prompt fits the limits."""
        settings = self._settings
        rng = generator(settings.seed, stream)
        prompts, lengths = self._fit(tokenizer)
        if settings.input_tokens is None:
            chosen = _cycle(len(prompts), count, rng)
        else:
            chosen = _nearest(lengths, sample_lengths(settings.input_tokens, count, rng), rng)
        outputs = self._outputs(prompts, chosen, rng, tokenizer)
        texts = [prompts[which].text for which in chosen]
        counts = [lengths[which] for which in chosen]
        if settings.cache == "cold":
            texts = [f"[{salt(settings.seed, stream, index)}]\n{text}" for index, text in enumerate(texts)]
            counts = tokenizer.count(texts)
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

    def _source(self) -> str:
        return self._settings.path or self._settings.dataset

    def _key(self) -> str:
        """Where the name of the data set came from."""
        return "workload.path" if self._settings.path else "workload.dataset"

    def _fit(self, tokenizer: Tokenizer) -> tuple[list[Prompt], list[int]]:
        if self._fitting is None:
            settings = self._settings
            everything = load(self._source(), settings.subset, settings.split, self._key())
            counts = tokenizer.count([prompt.text for prompt in everything])
            low, high = settings.min_prompt_tokens or 0, settings.max_prompt_tokens
            kept = [
                (prompt, count)
                for prompt, count in zip(everything, counts, strict=True)
                if low <= count and (high is None or count <= high)
            ]
            if not kept:
                asked = f"{low} tokens or more" if high is None else f"{low} to {high} tokens"
                raise ConfigError(
                    f"{self._key()}={self._source()} has no prompt of {asked} (its prompts have {min(counts)} to "
                    f"{max(counts)}); change workload.min_prompt_tokens or max_prompt_tokens"
                )
            self._fitting = [prompt for prompt, _ in kept], [count for _, count in kept]
        return self._fitting

    def _outputs(
        self, prompts: Sequence[Prompt], chosen: Sequence[int], rng: random.Random, tokenizer: Tokenizer
    ) -> list[int]:
        """As asked; else as long as the data set's own answers; else a default."""
        if self._settings.output_tokens is not None:
            return sample_lengths(self._settings.output_tokens, len(chosen), rng)
        answers = [prompts[which].answer or "" for which in chosen]
        return [count or DEFAULT_OUTPUT_TOKENS for count in tokenizer.count(answers)]


def _cycle(size: int, count: int, rng: random.Random) -> list[int]:
    """`count` indexes below `size`: every one once in a random order, then all again in another."""
    chosen: list[int] = []
    while len(chosen) < count:
        chosen += rng.sample(range(size), size)
    return chosen[:count]


def _nearest(lengths: Sequence[int], wanted: Sequence[int], rng: random.Random) -> list[int]:
    """For each wanted length the index of the nearest one; none twice before all were taken once. Of equals, a random."""
    chosen: list[int] = []
    pool: list[tuple[int, int]] = []
    for target in wanted:
        if not pool:
            pool = sorted(((length, index) for index, length in enumerate(lengths)), key=lambda one: one[0])
        above = bisect_left(pool, target, key=lambda one: one[0])
        gap = min(abs(pool[place][0] - target) for place in (above - 1, above) if 0 <= place < len(pool))
        low = bisect_left(pool, target - gap, key=lambda one: one[0])
        high = bisect_right(pool, target + gap, key=lambda one: one[0])
        nearest = [place for place in range(low, high) if abs(pool[place][0] - target) == gap]
        chosen.append(pool.pop(rng.choice(nearest))[1])
    return chosen
