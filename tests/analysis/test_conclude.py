"""What conclusions read of the stored requests."""

from collections import Counter
from dataclasses import fields, replace

from servebench.analysis.conclude import Options, conclude
from servebench.analysis.recommendation.rules import load_rules
from servebench.analysis.stored_runs import samples_of
from servebench.contracts.stored import RunData, StudyData
from servebench.store.studies import load_study
from servebench.util.errors import StoreError
from support.studies import SimulatedEngine, SimulatedLoad

DECIDED = {"study.until": "decided", "study.margin": "3%", "study.budget": "60m"}
READS: Counter[str] = Counter()


class CountedRun(RunData):
    """Counts how often its requests are looked at."""

    @property
    def requests(self):
        READS[self.run_id] += 1
        return self.tables("requests")


def without_requests(study: StudyData) -> StudyData:
    def damaged(*_: object):
        raise StoreError("requests.parquet cannot be read")

    return replace(study, runs=tuple(replace(run, tables=damaged) for run in study.runs))


def test_requests_become_samples_once(make_study):
    """For the comparison, the decision, the answer and the recommendations together."""
    load = SimulatedLoad(levels=(4,), requests=40, starts=2, config=DECIDED)
    study = load_study(make_study((SimulatedEngine(name="a"), load), (SimulatedEngine(name="b"), load)))
    alone, runs = (
        [CountedRun(**{one.name: getattr(run, one.name) for one in fields(run)}) for run in study.runs]
        for _ in range(2)
    )
    READS.clear()
    for run in alone:
        samples_of(run)
    once = READS.copy()
    READS.clear()
    conclude(runs, [replace(study, runs=tuple(runs))], Options(rules=load_rules(None)))
    assert once == READS


def test_the_answer_of_one_run_reads_no_requests(make_study):
    """Its table is that of the points; only comparisons and recommendations take the requests themselves."""
    study = load_study(make_study((SimulatedEngine(name="a"), SimulatedLoad(levels=(2, 4), requests=40, repeats=2))))
    assert conclude(without_requests(study).runs).answer == conclude(study.runs).answer
