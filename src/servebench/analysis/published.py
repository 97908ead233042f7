"""Published numbers for the same set-up, beside one's own, and how far apart they are."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from servebench.contracts.point_row import PointRow

COLUMNS = {
    ("output_throughput", "mean"): "output_throughput_whole_run_tok_s",
    ("ttft", "mean"): "ttft_ms_mean",
    ("ttft", "median"): "ttft_ms_p50",
    ("ttft", "p90"): "ttft_ms_p90",
    ("ttft", "min"): "ttft_ms_min",
    ("ttft", "max"): "ttft_ms_max",
}
"""Published metric and statistic, and the column that has the same definition here: whole-run throughput, as the articles
print it."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published number beside one's own at the same load. `apart` is own over published, less one."""

    source: str
    run: str
    level: str
    metric: str
    unit: str
    published: float
    own: float
    note: str

    @property
    def apart(self) -> float:
        """How far one's own is from the published number, as a share of it."""
        return self.own / self.published - 1 if self.published else 0.0


@lru_cache(maxsize=1)
def published_rows() -> tuple[dict[str, str], ...]:
    """All published numbers that are known, as they were printed."""
    text = (resources.files("servebench") / "emulator" / "data" / "published_results.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def _plain(name: str | None) -> str:
    return (name or "").rsplit("/", 1)[-1].lower()


def beside(run: str, rows: Iterable[PointRow]) -> list[Published]:
    """The published numbers for the points of a run: same engine, model, GPU, number of GPUs and concurrency."""
    found = []
    for row in rows:
        for one in published_rows():
            column = COLUMNS.get((one["metric"], one["statistic"]))
            own = row.get(column) if column else None
            if own is None or row.concurrency is None or not _same(one, row):
                continue
            note = "; ".join(filter(None, (one["workload"], one["note"])))
            found.append(
                Published(
                    source=one["source"],
                    run=run,
                    level=str(row.concurrency),
                    metric=f"{one['metric']} {one['statistic']}".replace("_", " "),
                    unit=one["unit"],
                    published=float(one["value"]),
                    own=float(own),
                    note=note,
                )
            )
    return found


def _same(one: Mapping[str, str], row: PointRow) -> bool:
    return (
        one["concurrency"] == str(row.concurrency)
        and one["engine"] == row.engine
        and bool(one["model"])
        and _plain(one["model"]) == _plain(row.model)
        and one["gpu"] == row.gpu
        and one["gpu_count"] in ("", str(row.gpu_count))
    )
