"""One quantity has one value and one interval on every screen, in MLflow and in every file."""

import json
from dataclasses import replace

import numpy as np
import pytest

from servebench.analysis.conclude import conclude
from servebench.analysis.estimate import best_level, estimate_level, levels_of
from servebench.analysis.stored_runs import entrant_of
from servebench.analysis.verdict.levels import metric_interval, metric_value
from servebench.report.blocks import Table
from servebench.report.charts import specs
from servebench.report.screens.listing import run_facts
from servebench.report.screens.points import repeats_blocks
from servebench.store import studies
from servebench.store.layout import StudyFolder
from servebench.store.tracking import tracked_run
from servebench.study.stored_tune import _figures
from servebench.study.tracking import ESTIMATORS
from servebench.util.figures import number
from support.studies import SimulatedEngine, SimulatedLoad, write_simulated_run

THROUGHPUT = "output_throughput_tok_s"


@pytest.mark.parametrize("fail_share", [0.0, 0.04])
@pytest.mark.parametrize(
    ("starts", "repeats", "levels"),
    [(1, 1, (4,)), (1, 2, (8,)), (1, 5, (2, 8)), (2, 1, (8,)), (3, 1, (8, 2)), (3, 2, (8,))],
)
def test_all_screens_show_one_number(tmp_path, starts, repeats, levels, fail_share):
    folder = StudyFolder(tmp_path / "study").run("run")
    load = SimulatedLoad(levels=levels, requests=200, starts=starts, repeats=repeats, seed=starts)
    write_simulated_run(folder, SimulatedEngine(run_sd=0.05, fail_share=fail_share), load)
    run = studies.load_run(folder.path)
    rows = run.point_rows
    known = {level: estimate_level(own, THROUGHPUT) for level, own in levels_of(rows).items()}
    (column,) = conclude([run]).answer.workloads[0].columns
    assert {level: (one.value, one.low, one.high) for level, one in column.cells.items()} == {
        level: (one.value, one.low, one.high) for level, one in known.items()
    }
    for level in entrant_of(run).levels:
        assert metric_value(THROUGHPUT, level) == known[level.level].value
        assert metric_interval(THROUGHPUT, level) == known[level.level].interval
    several = [one for one in known.values() if one.points > 1]
    tables = [block for block in repeats_blocks([("", rows)]) if isinstance(block, Table)]
    assert [cells[2].text.partition(" ")[0] for table in tables for cells in table.rows] == [
        number(one.value) for one in several
    ]
    sent = {
        (name, step): value
        for name, value, step, _ in tracked_run(folder, at_work=False, estimators=ESTIMATORS).metrics
    }
    assert {level.concurrency: sent[THROUGHPUT, level.concurrency] for level in known} == {
        level.concurrency: one.value for level, one in known.items()
    }
    best = best_level(rows)
    assert sent["best_output_throughput_tok_s", 0] == best.value == run_facts(run)["best_output_throughput_tok_s"]
    busiest = list(known.values())[-1]
    assert _figures(StudyFolder(tmp_path / "study"), "run").throughput == busiest.value
    for level, own in specs.by_level(rows).items():
        one = known[level]
        assert specs.mean_of(own, THROUGHPUT) == one.value
        assert specs._interval(own, THROUGHPUT) == (one.interval or (None, None))


def test_the_dashboard_shows_the_same(tmp_path):
    from servebench.report.dashboard.serve import run_row

    folder = StudyFolder(tmp_path / "study").run("run")
    write_simulated_run(folder, SimulatedEngine(run_sd=0.05), SimulatedLoad(levels=(8,), starts=2, repeats=2))
    run = studies.load_run(folder.path)
    rows = [
        replace(row, output_throughput_tok_s=value)
        for row, value in zip(run.point_rows, (100, 100, 200, 200), strict=True)
    ]
    found = run_row(replace(run, rows=lambda: rows), "run")
    assert found[THROUGHPUT] == pytest.approx(20_000**0.5) == best_level(rows).value
    assert json.dumps(found["verdict"])
    assert np.isfinite(found["ttft_ms_p50"])
