"""The workload `summarization`: long chronicles to be told in a few sentences; long in, short out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.lengths import sample_lengths
from servebench.workload.prose import Chronicler, event, paragraphs, town
from servebench.workload.salt import as_request, generator, salt
from servebench.workload.unique import WordList, fill

DEFAULT_INPUT_TOKENS = 3072
DEFAULT_OUTPUT_TOKENS = 160
ROOM_TOKENS_MIN = 32


@dataclass(frozen=True, kw_only=True)
class SummarizationSettings(WorkloadSettings):
    """`events` is how many main events a chronicle tells of; a good summary names them and nothing else."""

    events: Annotated[int, Ge(1), Le(20)] = 5


class SummarizationWorkload(Workload):
    """An invented town's chronicle, synthesised from the seed, of exactly the length asked for, task and salt included.

    A request's `reference` has `summary`, the main events in a short sentence each and in their order.
    """

    name = "summarization"
    settings_type = SummarizationSettings
    reference_keys = ("summary",)

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__(settings)
        assert isinstance(settings, SummarizationSettings)
        self._settings = settings
        self._words = WordList()
        self._chronicler = Chronicler()

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """`count` requests, no two with a common beginning. Raises ConfigError when the events do not fit."""
        settings = self._settings
        rng = generator(settings.seed, stream)
        lengths = sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, count, rng)
        outputs = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, count, rng)
        end = f"\n\nSummarise the chronicle in {settings.events} short sentences, the main events only.\nSummary:"
        drafts = [
            self._draft(
                salt(settings.seed, stream, index),
                lengths[index],
                end,
                generator(settings.seed, f"{stream}/{index}"),
                tokenizer,
            )
            for index in range(count)
        ]
        texts, counts = fill(
            [start for start, _ in drafts],
            lengths,
            rng,
            tokenizer,
            words=self._words.of(tokenizer),
            ends=[end] * count,
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
                reference={"summary": summary},
            )
            for index, (_, summary) in enumerate(drafts)
        ]

    def _draft(self, salted: str, length: int, end: str, rng: random.Random, tokenizer: Tokenizer) -> tuple[str, str]:
        """The text before the task, and the summary that is expected."""
        settings = self._settings
        place = town(rng)
        events = [event(rng, place) for _ in range(settings.events)]
        head = f"[{salted}] The chronicle of {place}.\n\n"
        told = [one.told for one in events]
        used = tokenizer.count([head + " ".join(told) + end])[0]
        if length - used < ROOM_TOKENS_MIN:
            raise ConfigError(
                f"workload.input_tokens={length} is too short for a chronicle of {settings.events} events; give "
                f"{used + ROOM_TOKENS_MIN} tokens or more, or fewer workload.events"
            )
        sentences = self._chronicler.sentences(length - used, rng, tokenizer)
        while sentences and tokenizer.count([head + paragraphs([*sentences, *told]) + end])[0] > length:
            del sentences[-max(1, len(sentences) // 50) :]
        places = sorted(rng.randint(0, len(sentences)) for _ in told)
        for at, sentence in reversed(list(zip(places, told, strict=True))):
            sentences.insert(at, sentence)
        return head + paragraphs(sentences), " ".join(one.short for one in events)
