"""What the report of a run or study shows."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from servebench.analysis.answer import Answer
from servebench.analysis.conclude import Conclusions
from servebench.analysis.limits import LimitFinding
from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.recommendation.model import Recommendation
from servebench.analysis.repeats import RepeatSummary
from servebench.analysis.verdict.model import Comparison
from servebench.contracts.labels import RunLabel
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData
from servebench.report.charts.model import Series
from servebench.report.charts.runs import QualityRow, Timeline
from servebench.report.parts import RunTimes


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """A run with its label and its points, as charts and as rows."""

    run: RunData
    label: RunLabel
    series: Series
    rows: Sequence[PointRow]

    @property
    def name(self) -> str:
        """The text of its label."""
        return self.label.text


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that a report shows. `agreements` are (baseline, candidate, result), `repeats` are by the name of the run,
    `with_earlier` is whether starts of earlier studies were looked at."""

    title: str
    folder: str
    words: Sequence[str]
    command: str = ""
    runs: Sequence[RunPage]
    version: str
    conclusions: Conclusions
    agreements: Sequence[tuple[str, str, Agreement]] = ()
    unjudged: str = ""
    timelines: Sequence[Timeline] = ()
    times: Sequence[RunTimes] = ()
    quality: Sequence[QualityRow] = ()
    faults: Sequence[str] = ()
    distribution_at: Level | None = None
    repeats: Sequence[tuple[str, RepeatSummary]] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    with_earlier: bool = True
    made_s: float = field(default_factory=time.time)

    @property
    def series(self) -> list[Series]:
        """The runs as charts show them."""
        return [one.series for one in self.runs]

    @property
    def answer(self) -> Answer:
        """What its runs say in a table and a sentence."""
        return self.conclusions.answer

    @property
    def answers(self) -> Sequence[Recommendation]:
        """The best run for each use."""
        return self.conclusions.recommendations or ()

    @property
    def comparisons(self) -> Sequence[Comparison]:
        """The pairs that are compared."""
        return list(self.conclusions.comparisons)

    @property
    def findings(self) -> Sequence[tuple[str, LimitFinding]]:
        """What limits each run at its levels."""
        return self.conclusions.limits or ()
