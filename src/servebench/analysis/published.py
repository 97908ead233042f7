"""Published numbers for the same setup as a run, and how far the run is from them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow

COLUMNS = {
    ("output_throughput", "mean"): "output_throughput_whole_run_tok_s",
    ("ttft", "mean"): "ttft_ms_mean",
    ("ttft", "median"): "ttft_ms_p50",
    ("ttft", "p90"): "ttft_ms_p90",
    ("ttft", "min"): "ttft_ms_min",
    ("ttft", "max"): "ttft_ms_max",
}
"""The column with the same definition as each published metric and statistic: the articles print whole-run throughput."""


@dataclass(frozen=True, kw_only=True)
class PublishedNumber:
    """A published number and the run's own at the same load."""

    source: str
    run: str
    level: Level
    metric: str
    unit: str
    published: float
    own: float
    note: str

    @property
    def difference(self) -> float:
        """The run's number relative to the published one, less one."""
        return self.own / self.published - 1 if self.published else 0.0


@lru_cache(maxsize=1)
def published_rows() -> tuple[dict[str, str], ...]:
    """Return all published numbers as printed."""
    text = (resources.files("servebench") / "emulator" / "data" / "published_results.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def compare_published(run: str, rows: Iterable[PointRow]) -> list[PublishedNumber]:
    """Return the published numbers for the points of a run: same engine, model, GPU, number of GPUs and concurrency."""
    found = []
    for row in rows:
        for printed in published_rows():
            column = COLUMNS.get((printed["metric"], printed["statistic"]))
            own = row.get(column) if column else None
            if own is None or row.concurrency is None or not _same_setup(printed, row):
                continue
            found.append(
                PublishedNumber(
                    source=printed["source"],
                    run=run,
                    level=row.level,
                    metric=f"{printed['metric']} {printed['statistic']}".replace("_", " "),
                    unit=printed["unit"],
                    published=float(printed["value"]),
                    own=float(own),
                    note="; ".join(filter(None, (printed["workload"], printed["note"]))),
                )
            )
    return found


def _same_setup(printed: Mapping[str, str], row: PointRow) -> bool:
    return (
        printed["concurrency"] == str(row.concurrency)
        and printed["engine"] == row.engine
        and bool(printed["model"])
        and _short_name(printed["model"]) == _short_name(row.model)
        and printed["gpu"] == row.gpu
        and printed["gpu_count"] in ("", str(row.gpu_count))
    )


def _short_name(model: str | None) -> str:
    return (model or "").rsplit("/", 1)[-1].lower()
