"""Synthesize English: chronicles of invented towns of any length. Written for servebench and under its licence."""

import random
from collections.abc import Sequence

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


def town(rng: random.Random) -> str:
    """Return an invented town."""
    return rng.choice(_TOWNS)


def sentence(rng: random.Random) -> str:
    """Return one sentence of a chronicle."""
    if rng.random() < 0.3:
        return rng.choice(_ASIDES)
    text = f"{rng.choice(_SUBJECTS)} {rng.choice(_DEEDS)} {rng.choice(_REASONS)}."
    return f"In {rng.randint(1850, 1990)} {text}" if rng.random() < 0.6 else text[0].upper() + text[1:]


def town_event(rng: random.Random, place: str) -> tuple[str, str]:
    """Return a main event of a chronicle: its unique sentence in the text, and the summary of it in few words."""
    who, did, why = rng.choice(_SUBJECTS), rng.choice(_DEEDS), rng.choice(_REASONS)
    year = rng.randint(1850, 1990)
    return f"What {place} remembers of {year} is that {who} {did}, {why}.", f"In {year} {who} {did}."


def paragraphs(sentences: Sequence[str]) -> str:
    """Join sentences into paragraphs, separated by empty lines."""
    parts = (sentences[start : start + _PARAGRAPH] for start in range(0, len(sentences), _PARAGRAPH))
    return "\n\n".join(" ".join(part) for part in parts)
