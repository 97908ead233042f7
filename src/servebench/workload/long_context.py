"""The workload `long_context`: a long chronicle with a few facts hidden in it, and a question about them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le

from servebench.contracts.request import Tokenizer
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.build.chronicles import ChronicleWorkload, Draft
from servebench.workload.build.seeding import salt
from servebench.workload.sources.prose import paragraphs

_THINGS = (
    "the brass key", "the flood register", "the harbour seal", "the ferry licence", "the organ fund", "the iron chest",
    "the lighthouse log", "the granary lock", "the clock tower", "the quarry lease", "the mill deed", "the school bell",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LongContextSettings(WorkloadSettings):
    """Each request's text contains `needles` facts at `depths` (0: its beginning, 1: its end; the needles take them in
    turn), or evenly spread when null."""

    needles: Annotated[int, Ge(0), Le(len(_THINGS))] = 3
    depths: tuple[Annotated[float, Ge(0), Le(1)], ...] | None = None
    exact_output: bool = True


class LongContextWorkload(ChronicleWorkload):
    """A salt, a chronicle of exactly the requested length with needles in it, and the question at its end.

    A request's `reference` has `needles`: for each the `thing`, the `answer` (six digits that occur nowhere else in the
    prompt) and the actual `depth`, as a share of the characters before the question.
    """

    name = "long_context"
    settings: LongContextSettings
    settings_type = LongContextSettings
    reference_keys = ("needles",)
    default_input_tokens = 32768
    default_output_tokens = 2048

    def check(self) -> list[str]:
        """Report an empty list of depths."""
        if self.settings.depths == ():
            return ["workload.depths=[] has no place for a needle; set depths from 0 to 1, null, or workload.needles=0"]
        return []

    def draft(self, index: int, length: int, stream: str, rng: random.Random, tokenizer: Tokenizer) -> Draft:
        """See ChronicleWorkload.draft."""
        settings = self.settings
        things = rng.sample(_THINGS, settings.needles)
        answers = [str(number) for number in rng.sample(range(100_000, 1_000_000), settings.needles)]
        hidden = [f"The number of {thing} is {answer}." for thing, answer in zip(things, answers, strict=True)]
        head = f"[{salt(settings.seed, stream, index)}] A chronicle follows, and after it a question.\n\n"
        end = _question(things)
        used = tokenizer.count([head + " ".join(hidden) + end])[0]
        length = self.length_for(
            length, used, f"a chronicle around workload.needles={settings.needles} and their question"
        )

        def prompt(sentences: list[str]) -> str:
            return head + paragraphs(sentences) + " ".join(hidden) + end

        sentences = self.sentences_that_fit(length - used, length, prompt, rng, tokenizer)
        text = paragraphs(_hide(hidden, sentences, self._depths(index)))
        return Draft(head + text, end, tuple(zip(things, answers, strict=True)), length)

    def reference(self, text: str, draft: Draft) -> Mapping[str, Any]:
        """See ChronicleWorkload.reference. Raises ConfigError if a needle is not once in the prompt: the model would be
        blamed."""
        body = len(text) - len(draft.end)
        needles = []
        for thing, answer in draft.facts:
            if text.count(answer) != 1:
                raise ConfigError(
                    f"the number of {thing} is not exactly once in the prompt; choose another workload.seed"
                )
            needles.append({"thing": thing, "answer": answer, "depth": text.index(answer) / body})
        return {"needles": needles}

    def _depths(self, index: int) -> list[float]:
        """Return the positions of a request's needles, as shares of its sentences."""
        settings = self.settings
        if settings.depths is None:
            return [(place + 0.5) / settings.needles for place in range(settings.needles)]
        first = index * settings.needles
        return [settings.depths[(first + place) % len(settings.depths)] for place in range(settings.needles)]


def _hide(hidden: Sequence[str], sentences: Sequence[str], depths: Sequence[float]) -> list[str]:
    """Return the sentences with the needles among them."""
    placed = list(sentences)
    for depth, needle in sorted(zip(depths, hidden, strict=True), reverse=True):
        placed.insert(round(depth * len(sentences)), needle)
    return placed


def _question(things: Sequence[str]) -> str:
    if not things:
        return "\n\nQuestion: What does the chronicle tell? Answer at length."
    return f"\n\nQuestion: What are the numbers of these, as the chronicle tells them: {', '.join(things)}?\nAnswer:"
