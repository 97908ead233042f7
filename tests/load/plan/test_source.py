"""Levels that end where throughput stops growing."""

from dataclasses import replace

import pytest

from servebench.contracts.results import Point
from servebench.contracts.settings import LoadSettings, SloSettings
from servebench.load.plan.source import level_source
from support.records import phase_report, record, summary_of

LOAD = LoadSettings(name="climb", concurrency=(1, 4, 16, 64), while_growing=True)
ROW = summary_of([record()], phase_report(), SloSettings(), run_id="r", point="c1-r0", engine="e", concurrency=1)[0]


def measured(load, throughputs, starts=1, usable=True):
    """Return the levels that are measured when they give these throughputs in tok/s."""
    source, levels = level_source(load, SloSettings(), 0, starts), []
    while (level := source.next_level()) is not None:
        row = replace(ROW, output_throughput_tok_s=throughputs[len(levels) % len(throughputs)])
        levels.append(level.concurrency)
        source.add_point(level, Point(row=row, doubts=()), usable=usable)
    return levels


@pytest.mark.parametrize(
    ("throughputs", "levels"),
    [
        ([100, 300, 900, 2000], [1, 4, 16, 64]),
        ([100, 300, 314, 2000], [1, 4, 16]),
        ([100, 300, 316, 2000], [1, 4, 16, 64]),
        ([100, 50, 300, 900], [1, 4]),
        ([100, None, 300, 310], [1, 4, 16, 64]),
    ],
)
def test_the_level_that_brings_no_more_is_the_last(throughputs, levels):
    assert measured(LOAD, throughputs) == levels


@pytest.mark.parametrize(
    ("load", "starts"),
    [
        (replace(LOAD, while_growing=False), 1),
        (replace(LOAD, repeats=2), 1),
        (LOAD, 2),
        (replace(LOAD, order="shuffled"), 1),
    ],
)
def test_otherwise_all_levels_are_measured(load, starts):
    assert sorted(set(measured(load, [100], starts))) == [1, 4, 16, 64]


def test_a_point_without_meaning_ends_nothing():
    assert measured(LOAD, [100], usable=False) == [1, 4, 16, 64]
