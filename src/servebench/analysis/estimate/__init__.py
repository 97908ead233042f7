"""One number for a metric of a run at a load level: the only mean over points and starts, and the only interval of it."""

from servebench.analysis.estimate.level import THROUGHPUT, best_level, error_of, estimate_level, levels_of, mean_of

__all__ = ["THROUGHPUT", "best_level", "error_of", "estimate_level", "levels_of", "mean_of"]
