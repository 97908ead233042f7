"""What the slowest requests of a level have in common: each possible cause compared between them and the rest.

Requests that are near one another share the engine's steps, so they are not independent: for each factor blocks of neighbouring
requests change their places at random, the values of a block together, and the p-value is the share of these orders in
which the slow requests stand out as much as they do (a permutation test of Wilcoxon's rank sum with blocks: Lahiri 2003,
"Resampling Methods for Dependent Data", chapter 2). Only what can make a request slow counts: longer prompts, not shorter ones.
The p-values of all factors, levels and both metrics of a run are corrected by Holm's method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from servebench.analysis.disturbance import stored_disturbances
from servebench.analysis.time_parts import (
    COLUMNS,
    FIRST,
    METRICS,
    REST,
    SLOW_FROM,
    Metric,
    TimeParts,
    request_parts,
    requests_by_level,
    slow_count,
    time_parts,
)
from servebench.analysis.verdict.families import holm
from servebench.contracts.level import Level
from servebench.contracts.stored import RunData
from servebench.util.arrays import Floats, Ints
from servebench.util.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    import pandas as pd


TAIL_MIN = 1.2
"""The slowest take at least this many times the median of the rest: else there is nothing to explain."""
P_MAX = 0.05
OFTEN = 0.75
"""A slow request has more of what slows it down than another one in at least this share of all pairs."""
APART = 1.25
"""The medians of a factor differ by at least this."""
MOST = 0.5
ORDERS, ORDERS_AT_ONCE = 9_999, 500
"""Random orders of the blocks: the smallest p-value is one of them."""
BEYOND_ENOUGH = 50
BLOCKS_MIN, BLOCKS_MAX = 20, 25
"""Few long blocks: engines are faster and slower for longer than an answer takes."""
TOGETHER = 0.8
"""The share of the slow requests that is in one stretch, if they are together."""
STRETCH_MAX = 0.1
"""The stretch has at most this share of the requests."""
STRETCH_SLOWER = 3.0
"""All requests of the stretch take this many times those outside of it (medians): they are slow because they were sent then."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A factor: its column, and its title with the unit. `sign` is -1 where less makes a request slow."""

    column: str
    title: str
    sign: int = 1
    metrics: Sequence[Metric] = ("TTFT", "E2E")


KINDS = (
    Kind(column="server_queue_ms", title="queue, ms"),
    Kind(column="prompt_tokens", title="prompt, tokens"),
    Kind(column="cached_tokens", title="cached tokens", sign=-1),
    Kind(column="output_tokens", title="answer, tokens", metrics=("E2E",)),
    Kind(column="preemptions_per_s", title="preemptions/s"),
    Kind(column="prefilling", title="others without a token"),
    Kind(column="prefill_tokens", title="their prompt tokens"),
    Kind(column="in_flight", title="others in flight"),
)


@dataclass(frozen=True, kw_only=True)
class Factor:
    """The median of a factor in the slow requests and the rest, in how many pairs of them the slow one has more of what slows it
    down, and the p-value, corrected."""

    kind: Kind
    slow: float
    rest: float
    more_often: float
    p: float

    @property
    def found(self) -> bool:
        """Whether the slow requests have it in common."""
        low, high = sorted((self.slow, self.rest))
        return self.p <= P_MAX and self.more_often >= OFTEN and high > 0 and high >= APART * low


@dataclass(frozen=True, kw_only=True)
class SlowStretch:
    """The shortest stretch, by requests, in which most of the slow ones were sent: `holds` of them among `requests`, from
    `start_ns` to `end_ns`, `start_s` seconds after the first request of its point. `slower` is how much longer all of its
    requests take than those outside, `causes` are the disturbances then."""

    holds: int
    requests: int
    start_ns: int
    end_ns: int
    start_s: float
    slower: float
    p: float
    causes: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether the slow requests are slow because of when they were sent."""
        return self.p <= P_MAX and self.slower >= STRETCH_SLOWER


@dataclass(frozen=True, kw_only=True)
class SlowTail:
    """The slowest requests of a level by TTFT or E2E (`n` of `of`; 0 where these are too few), the medians of both in
    milliseconds, the part that is most of the difference of the means with its share, and what they may have in common."""

    level: Level
    metric: Metric
    n: int
    of: int
    slow_ms: float = math.nan
    rest_ms: float = math.nan
    extra: tuple[str, float] | None = None
    factors: tuple[Factor, ...] = ()
    stretch: SlowStretch | None = None

    @property
    def is_tail(self) -> bool:
        """Whether they are much slower than the rest."""
        return self.n > 0 and self.slow_ms >= TAIL_MIN * self.rest_ms

    @property
    def common(self) -> list[Factor]:
        """The factors that they have in common, the clearest first."""
        return sorted((one for one in self.factors if one.found), key=lambda one: (-one.more_often, one.p))

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = {"level": str(self.level), "metric": self.metric, "n": self.n, "of": self.of}
        if not self.n:
            return found
        shown = ("slow", "rest", "more_often", "p", "found")
        return {
            **found,
            **{"slow_ms": self.slow_ms, "rest_ms": self.rest_ms, "difference": self.extra},
            "factors": {one.kind.column: {name: getattr(one, name) for name in shown} for one in self.factors},
            "stretch": self.stretch and {**asdict(self.stretch), "found": self.stretch.found},
        }


def where_time_goes(run: RunData) -> tuple[list[TimeParts], list[SlowTail]]:
    """Return the parts of a run's requests, and what its slowest ones have in common. Raises StoreError."""
    by_level = requests_by_level(run, [*COLUMNS.values(), "output_tokens"])
    return time_parts(run, by_level), slow_tails(run, by_level)


def slow_tails(run: RunData, by_level: Mapping[Level, pd.DataFrame]) -> list[SlowTail]:
    """Return what the slowest requests of each level have in common, by TTFT and by E2E. Raises StoreError."""
    found = []
    preempted = {row.level for row in run.point_rows if row.server_preemptions}
    for level, requests in by_level.items():
        rates = {"preemptions_per_s": preemptions_per_s(requests, run.telemetry)} if level in preempted else {}
        found += [slow_tail(level, metric, requests.assign(**rates)) for metric in METRICS]
    return [
        replace(one, stretch=replace(one.stretch, causes=_causes(one.stretch, by_level[one.level], run)))
        if one.stretch is not None and one.stretch.found
        else one
        for one in corrected(found)
    ]


def slow_tail(level: Level, metric: Metric, requests: pd.DataFrame) -> SlowTail:
    """Return what the slowest of a level's requests, as `requests_by_level` returns them, have in common; p-values are not
    corrected yet."""
    requests = requests[requests["first_event_ns"].notna()]
    end = "first_event_ns" if metric == "TTFT" else "ended_ns"
    took_ms = (requests[end] - requests["scheduled_ns"]).to_numpy(dtype=np.float64) / NS_PER_MS
    n = slow_count(took_ms.size)
    tail = SlowTail(level=level, metric=metric, n=n, of=took_ms.size)
    if not n:
        return tail
    slow = np.zeros(took_ms.size, dtype=np.bool_)
    slow[np.argsort(-took_ms, kind="stable")[:n]] = True
    tail = replace(tail, slow_ms=float(np.median(took_ms[slow])), rest_ms=float(np.median(took_ms[~slow])))
    if not tail.is_tail:
        return tail
    block = block_length(requests["in_flight"].to_numpy(dtype=np.float64))
    known = [kind for kind in KINDS if metric in kind.metrics and kind.column in requests]
    factors = [_factor(kind, requests[kind.column].to_numpy(dtype=np.float64), slow, block) for kind in known]
    return replace(
        tail,
        extra=_extra(metric, request_parts(requests), slow),
        factors=tuple(one for one in factors if one is not None),
        stretch=_stretch(requests, took_ms, slow),
    )


def _extra(metric: Metric, parts: pd.DataFrame, slow: NDArray[np.bool_]) -> tuple[str, float] | None:
    """Return the part that is most of what the slow requests take longer, and its share; None where no part is most of it, or
    the engine does not divide it. Where it divides some requests only these count, if they are half of the slow ones."""
    known = np.ones(len(parts), dtype=np.bool_)
    for unknown in (FIRST, REST):
        if unknown in METRICS[metric] and parts[unknown].isna().any():
            known &= parts[unknown].isna().to_numpy()
    if 2 * (slow & known).sum() < slow.sum() or not (known & ~slow).any():
        return None
    own = parts[list(METRICS[metric])].fillna(0.0)
    longer = own[slow & known].mean() - own[~slow & known].mean()
    name, share = str(longer.idxmax()), float(longer.max() / longer.sum())
    return (name, share) if share > MOST and (name, metric) != (FIRST, "TTFT") else None


def corrected(tails: Sequence[SlowTail]) -> list[SlowTail]:
    """Return them with p-values that are corrected for their number (Holm 1979)."""
    ps = [p for one in tails for p in (*(f.p for f in one.factors), *((one.stretch.p,) if one.stretch else ()))]
    rest = iter(p for p in holm(ps) if p is not None)
    return [
        replace(
            one,
            factors=tuple(replace(factor, p=next(rest)) for factor in one.factors),
            stretch=replace(one.stretch, p=next(rest)) if one.stretch else None,
        )
        for one in tails
    ]


def block_length(in_flight: Floats) -> int:
    """Return how many requests in the order sent are exchanged together: twice as many as share the engine, in BLOCKS_MIN to
    BLOCKS_MAX blocks."""
    alike = 2 * (1 + float(np.median(in_flight)))
    return max(1, min(round(alike), in_flight.size // BLOCKS_MIN), in_flight.size // BLOCKS_MAX)


def _factor(kind: Kind, values: Floats, slow: NDArray[np.bool_], block: int) -> Factor | None:
    """Return a factor; None where it is unknown for too many requests, or the same for all."""
    from scipy.stats import rankdata

    known = ~np.isnan(values)
    values, slow = values[known], slow[known]
    n = int(slow.sum())
    if n < slow_count(known.size) / 2 or values.size < SLOW_FROM or np.ptp(values) == 0:
        return None
    ranks = rankdata(kind.sign * values)
    pairs = n * (values.size - n)
    return Factor(
        kind=kind,
        slow=float(np.median(values[slow])),
        rest=float(np.median(values[~slow])),
        more_often=float((ranks[slow].sum() - n * (n + 1) / 2) / pairs),
        p=block_p_value(ranks, np.flatnonzero(slow), block),
    )


def block_p_value(ranks: Floats, slow: Ints, block: int) -> float:
    """Return the one-sided p-value of the sum of the ranks at these places, over random orders of blocks of ranks.

    It looks no further once BEYOND_ENOUGH orders are as extreme (Besag and Clifford 1991, Biometrika 78).
    """
    rng = np.random.default_rng(0)
    count = math.ceil(ranks.size / block)
    observed = ranks[slow].sum()
    beyond = done = 0
    while done < ORDERS and beyond < BEYOND_ENOUGH:
        some = min(ORDERS - done, ORDERS_AT_ONCE)
        shifted = (slow + rng.integers(ranks.size, size=(some, 1))) % ranks.size
        moved = np.take_along_axis(rng.permuted(np.tile(np.arange(count), (some, 1)), axis=1), shifted // block, axis=1)
        beyond += int((ranks[(moved * block + shifted % block) % ranks.size].sum(axis=1) >= observed - 1e-9).sum())
        done += some
    return (beyond + 1) / (done + 1)


def _stretch(requests: pd.DataFrame, took_ms: Floats, slow: NDArray[np.bool_]) -> SlowStretch | None:
    """Return the shortest stretch with most of the slow requests; None where it is a large part of the point."""
    from scipy.stats import binom

    places = np.flatnonzero(slow)
    tried = (places.size, math.ceil(TOGETHER * places.size))
    for holds in tried:
        lengths = places[holds - 1 :] - places[: places.size - holds + 1] + 1
        start = int(places[int(lengths.argmin())])
        count = int(lengths.min())
        if count <= STRETCH_MAX * slow.size:
            break
    inside = requests.iloc[start : start + count]
    if count > STRETCH_MAX * slow.size or inside["point"].nunique() > 1:
        return None
    within = np.zeros(slow.size, dtype=np.bool_)
    within[start : start + count] = True
    start_ns, end_ns = int(inside["sent_ns"].iloc[0]), int(inside["sent_ns"].iloc[-1])
    first_ns = int(requests.loc[requests["point"] == inside["point"].iloc[0], "sent_ns"].iloc[0])
    # one of the slow requests begins the stretch, and the others are in it by chance: at most the sum over which begins it
    p = len(tried) * places.size * float(binom.sf(holds - 2, places.size - 1, count / slow.size))
    return SlowStretch(
        holds=int(slow[within].sum()),
        requests=count,
        start_ns=start_ns,
        end_ns=end_ns,
        start_s=(start_ns - first_ns) / NS_PER_S,
        slower=float(np.median(took_ms[within]) / np.median(took_ms[~within])),
        p=min(1.0, p),
    )


def _causes(stretch: SlowStretch, requests: pd.DataFrame, run: RunData) -> tuple[str, ...]:
    point = requests.loc[requests["sent_ns"] == stretch.start_ns, "point"].iloc[0]
    own = requests[requests["point"] == point]
    first_ns, row = int(own["sent_ns"].iloc[0]), next(one for one in run.point_rows if one.point == point)
    then = [
        one
        for one in stored_disturbances(row, own, run.telemetry)
        if one.start_ns <= stretch.end_ns and one.end_ns >= stretch.start_ns
    ]
    return tuple(one.words(first_ns) for one in sorted(then, key=lambda one: -one.amount))


def preemptions_per_s(requests: pd.DataFrame, telemetry: pd.DataFrame) -> Floats:
    """Return how many requests a second the engine preempted while each request was in it, by its telemetry; NaN where that was
    not sampled."""
    found = np.full(len(requests), np.nan)
    if not {"name", "t_ns", "value", "source", "raw_name", "labels"} <= set(telemetry.columns):
        return found
    own = telemetry[telemetry["name"] == "preemptions"].sort_values("t_ns")
    sent, ended = (requests[name].to_numpy(dtype=np.float64) for name in ("sent_ns", "ended_ns"))
    for _, series in own.groupby(["source", "raw_name", "labels"], dropna=False, observed=True):
        at, values = series["t_ns"].to_numpy(dtype=np.float64), series["value"].to_numpy(dtype=np.float64)
        grown = np.maximum(np.interp(ended, at, values) - np.interp(sent, at, values), 0.0)
        found = np.nan_to_num(found) + grown / np.maximum((ended - sent) / NS_PER_S, 1e-9)
    return found
