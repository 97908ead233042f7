"""The workload `summarization`: long chronicles to summarize in a few sentences."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le

from servebench.contracts.request import Tokenizer
from servebench.contracts.settings import WorkloadSettings
from servebench.workload.build.chronicles import ChronicleWorkload, Draft
from servebench.workload.build.seeding import salt
from servebench.workload.sources.prose import paragraphs, town, town_event


@dataclass(frozen=True, kw_only=True)
class SummarizationSettings(WorkloadSettings):
    """`events` is the number of main events in a chronicle; a good summary names them and nothing else."""

    events: Annotated[int, Ge(1), Le(20)] = 5


class SummarizationWorkload(ChronicleWorkload):
    """An invented town's chronicle, synthesized from the seed, of exactly the requested length, task and salt included.

    A request's `reference` has `summary`: the main events in order, a short sentence each.
    """

    name = "summarization"
    settings: SummarizationSettings
    settings_type = SummarizationSettings
    reference_keys = ("summary",)
    default_input_tokens = 3072
    default_output_tokens = 160

    def draft(self, index: int, length: int, stream: str, rng: random.Random, tokenizer: Tokenizer) -> Draft:
        """See ChronicleWorkload.draft."""
        settings = self.settings
        place = town(rng)
        events = [town_event(rng, place) for _ in range(settings.events)]
        head = f"[{salt(settings.seed, stream, index)}] The chronicle of {place}.\n\n"
        end = f"\n\nSummarise the chronicle in {settings.events} short sentences, the main events only.\nSummary:"
        main = [text for text, _ in events]
        used = tokenizer.count([head + " ".join(main) + end])[0]
        length = self.length_for(length, used, f"a chronicle with workload.events={settings.events}")

        def prompt(sentences: list[str]) -> str:
            return head + paragraphs([*sentences, *main]) + end

        sentences = self.sentences_that_fit(length - used, length, prompt, rng, tokenizer)
        places = sorted(rng.randint(0, len(sentences)) for _ in main)
        for at, sentence in reversed(list(zip(places, main, strict=True))):
            sentences.insert(at, sentence)
        return Draft(head + paragraphs(sentences), end, events, length)

    def reference(self, text: str, draft: Draft) -> Mapping[str, Any]:
        """See ChronicleWorkload.reference."""
        return {"summary": " ".join(summary for _, summary in draft.facts)}
