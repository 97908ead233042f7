"""How often the intervals of a point hold the truth, on a simulated engine: the promise that `calibrate` checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servebench.analysis.coverage_engine import CoverageLoad, SimulatedPoints, simulate
from servebench.analysis.statistics import headline_intervals
from servebench.measure.points import HEADLINES, PointSample

CELLS: dict[str, CoverageLoad] = {
    "8 streams, lengths 64±40, wander 2% over 5 s": CoverageLoad(),
    "8 streams, lengths 64±40, no wander": CoverageLoad(wander=0.0),
    "8 streams, lengths 64±40, wander 5% over 10 s": CoverageLoad(wander=0.05, wander_s=10.0),
    "32 streams, lengths 200±150, wander 2% over 5 s": CoverageLoad(streams=32, length=200, spread=150),
    "1 stream, lengths 64±40, wander 2% over 5 s": CoverageLoad(streams=1),
    "open loop, 6/s, lengths 64±40, wander 2% over 5 s": CoverageLoad(rate=6.0),
}
"""The loads for which coverage is promised."""
REQUESTS = (100, 500, 2000)
PROMISED = 0.92
"""The least share of 95% intervals that hold the truth."""
PROMISED_COLUMNS = (
    *("output_throughput_tok_s", "ttft_ms_mean", "ttft_ms_p50", "ttft_ms_p95"),
    *("tpot_ms_mean", "itl_ms_mean", "e2e_ms_mean"),
)


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Of `shown` intervals `covered` held the truth; the other `repetitions` had no interval. `width` is their mean width
    relative to the one with the true error of a normal estimate known; None where none was shown."""

    column: str
    requests: int
    covered: int
    shown: int
    repetitions: int
    truth: float
    width: float | None

    @property
    def share(self) -> float | None:
        """The share of the shown intervals that hold the truth; None where none was shown."""
        return self.covered / self.shown if self.shown else None


def measure_coverage(
    load: CoverageLoad,
    *,
    requests: Sequence[int] = REQUESTS,
    repetitions: int = 200,
    seed: int = 0,
    columns: Sequence[str] = HEADLINES,
) -> list[Coverage]:
    """Return the coverage of the intervals of each column for points of so many requests. Pure.

    The truth is that of all repetitions of the longest points together.
    """
    points = simulate(load, max(requests), repetitions, seed)
    truth = long_run(points)
    found = []
    for count in requests:
        samples = [points.sample(row, count) for row in range(repetitions)]
        intervals = [headline_intervals(sample) for sample in samples]
        estimates = [estimate(sample) for sample in samples]
        for column in columns:
            shown = [ends for one in intervals if (ends := one[column]) is not None]
            spread = 2 * 1.96 * float(np.std([one[column] for one in estimates]))
            width = float(np.mean([high - low for low, high in shown])) if shown else None
            found.append(
                Coverage(
                    column=column,
                    requests=count,
                    covered=sum(low <= truth[column] <= high for low, high in shown),
                    shown=len(shown),
                    repetitions=repetitions,
                    truth=truth[column],
                    width=width / spread if width is not None and spread > 0 else None,
                )
            )
    return found


def estimate(sample: PointSample) -> dict[str, float]:
    """Return the headline numbers of a sample by column."""
    assert sample.arrival_tokens is not None
    found = {"output_throughput_tok_s": float(sample.arrival_tokens.sum()) / sample.window_s}
    for column in HEADLINES[1:]:
        name, _, statistic = column.rpartition("_")
        values = getattr(sample, name)
        share = None if statistic == "mean" else float(statistic.removeprefix("p")) / 100
        found[column] = float(values.mean() if share is None else np.quantile(values, share))
    return found


def long_run(points: SimulatedPoints) -> dict[str, float]:
    """Return the headline numbers of all repetitions together."""
    samples = [points.sample(row) for row in range(points.sent_s.shape[0])]
    together = {
        name: np.concatenate([getattr(sample, name) for sample in samples])
        for name in ("ttft_ms", "ttfo_ms", "tpot_ms", "e2e_ms", "itl_ms", "itl_counts", "arrival_tokens")
    }
    window_s = sum(sample.window_s for sample in samples)
    return estimate(PointSample(**together, arrival_s=np.empty(0), window_s=window_s))
