"""What a report shows."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from servebench.analysis.comparison.model import Comparison
from servebench.analysis.published import PublishedNumber
from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.recommendation.model import Recommendation
from servebench.analysis.repeats import RepeatSummary
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import QualitySummary
from servebench.contracts.stored import RunData
from servebench.report.html.charts import RunView
from servebench.report.html.svg import Span

Panel = tuple[str, Sequence[tuple[float, float]]]
"""The name of a line with its unit, and its samples of (seconds, value)."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One point over time."""

    run: str
    level: str
    spans: Sequence[Span]
    panels: Sequence[Panel] = ()
    window: tuple[float, float] | None = None
    disturbed: Sequence[tuple[float, float, str]] = ()
    """When others took the machine, in seconds, and who."""


@dataclass(frozen=True, kw_only=True)
class QualityRow:
    """A benchmark's result at one load, with its interval: `share` is the figure to show."""

    run: str
    result: QualitySummary
    share: float
    low: float
    high: float

    @property
    def load(self) -> float | None:
        """The rate or the concurrency."""
        return self.result.rate if self.result.rate is not None else self.result.concurrency


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """A run with its points, as charts and as rows."""

    run: RunData
    view: RunView
    rows: Sequence[PointRow]


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that a report shows. `agreements` are (baseline, candidate, result), `repeats` are by the name of the run."""

    title: str
    words: Sequence[str]
    runs: Sequence[RunPage]
    version: str
    answers: Sequence[Recommendation] = ()
    comparisons: Sequence[Comparison] = ()
    agreements: Sequence[tuple[str, str, Agreement]] = ()
    unjudged: str = ""
    timelines: Sequence[Timeline] = ()
    quality: Sequence[QualityRow] = ()
    published: Sequence[PublishedNumber] = ()
    faults: Sequence[str] = ()
    distribution_at: str | None = None
    repeats: Sequence[tuple[str, RepeatSummary]] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    made_s: float = field(default_factory=time.time)

    @property
    def views(self) -> list[RunView]:
        """The runs as charts show them."""
        return [one.view for one in self.runs]
