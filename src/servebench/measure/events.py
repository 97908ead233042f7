"""The content events of some requests: when each came, and how many tokens it has."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from servebench.util.arrays import Floats, Ints
from servebench.util.units import NS_PER_MS


@dataclass(frozen=True, kw_only=True)
class EventColumns:
    """All content events of some requests, request after request: their stamps and tokens, and how many each request has.

    `tokens` is None if the length of an answer is unknown.
    """

    stamp_ns: Ints
    counts: Ints
    tokens: Floats | None

    @property
    def gaps_ms(self) -> Floats:
        """The gaps between consecutive events of each request (ITL)."""
        owner = np.repeat(np.arange(self.counts.size), self.counts)
        found: Floats = np.diff(self.stamp_ns)[owner[1:] == owner[:-1]] / NS_PER_MS
        return found


def events_of(event_ns: Iterable[Any], event_tokens: Iterable[Any], output_tokens: Floats) -> EventColumns:
    """Return the events of requests, from the stamps and tokens of each (null, NaN or a sequence) and their output tokens (NaN if
    unknown).

    The tokens of an event are those in the stream, else an equal share of the request's output tokens. The end token and text
    that was withheld come without a content event: they belong to the last one.
    """
    null = (type(None), float)
    stamps, streamed = ([() if isinstance(one, null) else one for one in some] for some in (event_ns, event_tokens))
    counts, known = (np.array([len(one) for one in some], dtype=np.int64) for some in (stamps, streamed))
    complete = known == counts
    stamp_ns = _flat(stamps).astype(np.int64)
    if np.isnan(output_tokens[~complete]).any():
        return EventColumns(stamp_ns=stamp_ns, counts=counts, tokens=None)
    tokens = np.repeat(output_tokens / np.maximum(counts, 1), counts)
    owner = np.repeat(np.arange(counts.size), counts)
    tokens[complete[owner]] = _flat([one for one, whole in zip(streamed, complete, strict=True) if whole])
    has = (counts > 0) & complete & ~np.isnan(output_tokens)
    sums = np.bincount(owner, weights=tokens, minlength=counts.size)
    tokens[(np.cumsum(counts) - 1)[has]] += np.maximum(output_tokens[has] - sums[has], 0.0)
    return EventColumns(stamp_ns=stamp_ns, counts=counts, tokens=tokens)


def _flat(lists: Iterable[Any]) -> Any:
    kept = [one for one in lists if len(one)]
    return np.concatenate(kept) if kept else np.empty(0)
