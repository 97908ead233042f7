"""What the report of a run or study shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from servebench.analysis.answer.model import Answer
from servebench.analysis.conclude import Conclusions
from servebench.analysis.recommendation.model import Recommendation
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.results import QualitySummary
from servebench.contracts.stored import RunData, StudyData
from servebench.report.charts.model import Series
from servebench.report.charts.runs import Timeline
from servebench.report.parts import RunTimes
from servebench.util.short_id import short_id


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """A run by the text of its label, with its points as charts show them."""

    run: RunData
    name: str
    series: Series

    @property
    def rows(self) -> Sequence[PointRow]:
        """Its points."""
        return self.series.rows


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that a report shows of a run or a study (`found`); `with_earlier`: starts of earlier studies were looked at, too."""

    found: RunData | StudyData
    runs: Sequence[RunPage]
    conclusions: Conclusions
    timelines: Sequence[Timeline] = ()
    times: Sequence[RunTimes] = ()
    quality: Sequence[tuple[str, QualitySummary]] = ()
    distribution_at: Level | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    with_earlier: bool = True

    @property
    def title(self) -> str:
        """The study, and of a run alone its title."""
        title = short_id(self.found.study_id)
        return title if isinstance(self.found, StudyData) else f"{title} · {self.found.title}"

    @property
    def folder(self) -> str:
        """The folder of the study or the run, below that of all studies."""
        return self.found.study_id if isinstance(self.found, StudyData) else self.found.run_id

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
