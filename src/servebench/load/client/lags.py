"""How late the loop comes back from its naps."""

from __future__ import annotations

from servebench.util.units import NS_PER_MS


class LagHistogram:
    """Counts lags in buckets of 2**16 ns (66 us), up to 0.27 s."""

    SHIFT, BUCKETS = 16, 4096

    def __init__(self) -> None:
        self.counts = [0] * self.BUCKETS
        self.max_ns = 0

    def add(self, lag_ns: int) -> None:
        """Count one lag, in nanoseconds."""
        lag_ns = max(lag_ns, 0)
        self.max_ns = max(self.max_ns, lag_ns)
        self.counts[min(lag_ns >> self.SHIFT, self.BUCKETS - 1)] += 1

    def percentile_ms(self, share: float) -> float | None:
        """Return the upper edge of the bucket that holds this share, in milliseconds; None when nothing was counted."""
        left = share * sum(self.counts)
        if not left:
            return None
        for bucket, count in enumerate(self.counts):
            left -= count
            if left <= 0:
                return min((bucket + 1) << self.SHIFT, self.max_ns) / NS_PER_MS
        return self.max_ns / NS_PER_MS
