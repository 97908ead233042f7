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


def test_a_run_whose_requests_are_damaged_does_not_hide_the_others(make_study):
    """Its points are left out of all conclusions, and the answer says which file cannot be read."""
    load = SimulatedLoad(levels=(4,), requests=40, starts=2, config=DECIDED)
    study = load_study(make_study(*((SimulatedEngine(name=name), load) for name in "abc")))
    broken = replace(study, runs=(*study.runs[:2], *without_requests(study).runs[2:]))
    found = conclude(broken.runs, [broken], Options(rules=load_rules(None)), earlier=broken.runs)
    alone = replace(study, runs=study.runs[:2])
    expected = conclude(alone.runs, [alone], Options(), earlier=alone.runs)
    a, b, _ = (run.run_id for run in study.runs)
    assert [one.ids for one in found.comparisons] == [(a, b)]
    assert [one.effect for one in found.comparisons[0].rows] == [one.effect for one in expected.comparisons[0].rows]
    assert [(one.label, one.standing) for one in found.answer.failures] == [("c", "unreadable")]
    pairs = [(broken.runs[0], broken.runs[2])]
    assert not any(row.effect for row in conclude(broken.runs, pairs=pairs).comparisons[0].rows)


def test_the_answer_of_one_run_reads_no_requests(make_study):
    """Its table is that of the points; only comparisons and recommendations take the requests themselves."""
    study = load_study(make_study((SimulatedEngine(name="a"), SimulatedLoad(levels=(2, 4), requests=40, repeats=2))))
    assert conclude(without_requests(study).runs).answer == conclude(study.runs).answer
