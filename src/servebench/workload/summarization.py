"""The workload `summarization`: long chronicles to summarize in a few sentences."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.build.fill import WordList, fill
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.requests import as_requests
from servebench.workload.build.seeding import generator, salt
from servebench.workload.sources.prose import Chronicler, paragraphs, town, town_event

DEFAULT_INPUT_TOKENS = 3072
DEFAULT_OUTPUT_TOKENS = 160
ROOM_TOKENS_MIN = 32


@dataclass(frozen=True, kw_only=True)
class SummarizationSettings(WorkloadSettings):
    """`events` is the number of main events in a chronicle; a good summary names them and nothing else."""

    events: Annotated[int, Ge(1), Le(20)] = 5


class SummarizationWorkload(Workload):
    """An invented town's chronicle, synthesized from the seed, of exactly the requested length, task and salt included.

    A request's `reference` has `summary`: the main events in order, a short sentence each.
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
        """Return `count` requests, no two with a common beginning. Raises ConfigError when the events do not fit."""
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
        references = [{"summary": summary} for _, summary in drafts]
        return as_requests(settings, stream, texts, prompt_tokens=counts, output_tokens=outputs, references=references)

    def _draft(self, mark: str, length: int, end: str, rng: random.Random, tokenizer: Tokenizer) -> tuple[str, str]:
        """Return the text before the task, and the expected summary."""
        settings = self._settings
        place = town(rng)
        events = [town_event(rng, place) for _ in range(settings.events)]
        head = f"[{mark}] The chronicle of {place}.\n\n"
        main = [event.sentence for event in events]
        used = tokenizer.count([head + " ".join(main) + end])[0]
        if length - used < ROOM_TOKENS_MIN:
            raise ConfigError(
                f"workload.input_tokens={length} is too short for a chronicle of {settings.events} events; set it "
                f"to {used + ROOM_TOKENS_MIN} or more, or reduce workload.events"
            )

        def prompt(sentences: list[str]) -> str:
            return head + paragraphs([*sentences, *main]) + end

        sentences = self._chronicler.sentences_that_fit(length - used, length, prompt, rng, tokenizer)
        places = sorted(rng.randint(0, len(sentences)) for _ in main)
        for at, sentence in reversed(list(zip(places, main, strict=True))):
            sentences.insert(at, sentence)
        return head + paragraphs(sentences), " ".join(event.summary for event in events)
