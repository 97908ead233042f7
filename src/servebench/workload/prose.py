"""Synthesised English: chronicles of invented towns, as long as needed. Written for servebench and under its licence."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from servebench.contracts.request import Tokenizer

_SUBJECTS = (
    "the council", "the harbour office", "a group of teachers", "the old mill", "the ferry company", "the city library",
    "the night watch", "the market hall", "a young engineer", "the water board", "the fishing fleet", "the theatre",
    "the railway workshop", "the school board", "a visiting botanist", "the weather station", "the glass factory",
)  # fmt: skip
_DEEDS = (
    "repaired the northern bridge", "opened a second reading room", "sold its last wooden boats", "hired six new clerks",
    "moved into the brick house by the canal", "published a map of every well", "planted lime trees along the road",
    "measured the depth of the harbour again", "lost most of its records in a flood", "changed its opening hours",
    "asked for a larger budget", "invited visitors from the coast", "kept the lamps burning through the winter",
    "built a small observatory", "replaced the steam engine with a motor", "started a weekly paper",
)  # fmt: skip
_REASONS = (
    "because the harvest had been good", "although few people had asked for it", "after two years of argument",
    "as the old rules no longer held", "while the road was closed", "since the price of coal had fallen",
    "with money left by a former mayor", "against the advice of the builders", "before the autumn storms came",
    "so that the ferries could run at night", "in spite of the long drought", "once the new wells were dug",
)  # fmt: skip
_ASIDES = (
    "Nobody wrote down who paid for it.", "The letters of that year say little more.", "It rained for most of the month.",
    "Some of the neighbours remembered it differently.", "The same was tried again later, with less success.",
    "A photograph of the day hangs in the town hall.", "Prices in the market stayed as they were.",
    "Visitors were surprised at how quiet it was.", "The work took longer than anyone had planned.",
)  # fmt: skip
_TOWNS = (
    "Aldermoor", "Brackwater", "Cindermouth", "Dunhollow", "Eastwick Quay", "Fallowmere", "Greyhaven", "Hartsleigh",
    "Inverlode", "Kestrel Bay", "Larkspur", "Millbrook End", "Northfold", "Oakenshaw", "Pennyroyal", "Quarrington",
)  # fmt: skip
_PARAGRAPH = 6
_SAMPLE = 48


def town(rng: random.Random) -> str:
    """An invented town."""
    return rng.choice(_TOWNS)


def sentence(rng: random.Random) -> str:
    """One sentence of a chronicle."""
    if rng.random() < 0.3:
        return rng.choice(_ASIDES)
    said = f"{rng.choice(_SUBJECTS)} {rng.choice(_DEEDS)} {rng.choice(_REASONS)}."
    return f"In {rng.randint(1850, 1990)} {said}" if rng.random() < 0.6 else said[0].upper() + said[1:]


@dataclass(frozen=True)
class Event:
    """What a chronicle tells of: `told` in the text, `short` in a summary of it."""

    told: str
    short: str


def event(rng: random.Random, place: str) -> Event:
    """A main event: a sentence that only it has, and the same in few words."""
    who, did, why = rng.choice(_SUBJECTS), rng.choice(_DEEDS), rng.choice(_REASONS)
    year = rng.randint(1850, 1990)
    return Event(f"What {place} remembers of {year} is that {who} {did}, {why}.", f"In {year} {who} {did}.")


class Chronicler:
    """Writes as many sentences as fill a number of tokens, nearly; remembers how long sentences are for a tokenizer."""

    def __init__(self) -> None:
        self._known: tuple[Tokenizer, float] | None = None

    def tokens_a_character(self, tokenizer: Tokenizer) -> float:
        """How many tokens a character of this prose has, measured once on a fixed sample."""
        if self._known is None or self._known[0] is not tokenizer:
            rng = random.Random("servebench prose")
            text = " ".join(sentence(rng) for _ in range(_SAMPLE))
            self._known = tokenizer, tokenizer.count([text])[0] / len(text)
        return self._known[1]

    def sentences(self, tokens: int, rng: random.Random, tokenizer: Tokenizer) -> list[str]:
        """Sentences of together a little less than so many tokens (by 2 % and one sentence, to leave room for an end)."""
        left = tokens * 0.98 / self.tokens_a_character(tokenizer)
        found: list[str] = []
        while True:
            new = sentence(rng)
            left -= len(new) + 1
            if left < 0:
                return found
            found.append(new)


def paragraphs(sentences: Sequence[str]) -> str:
    """A text of paragraphs, parted by empty lines."""
    parts = (sentences[start : start + _PARAGRAPH] for start in range(0, len(sentences), _PARAGRAPH))
    return "\n\n".join(" ".join(part) for part in parts)
