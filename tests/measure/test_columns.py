"""The metrics on whole columns are those of derive and points, to the digit."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from servebench.contracts.point_row import PointRow
from servebench.contracts.settings import SloSettings
from servebench.measure import columns, derive
from servebench.store.layout import RunFolder
from servebench.store.tables import read_records, read_requests
from support.records import MS, summary_of
from support.studies import SimulatedEngine, SimulatedLoad


@pytest.fixture
def run(make_study):
    study = make_study((SimulatedEngine(fail_share=0.1), SimulatedLoad(requests=60)))
    folder = RunFolder(next(path for path in study.iterdir() if path.is_dir()))
    return read_requests(folder), read_records(folder), pd.read_parquet(folder.points).iloc[0]


def test_latencies_are_those_of_derive(run):
    frame, records, _ = run
    found = columns.request_metrics(frame).set_index("request_id")
    for record in records:
        for name in ("ttft_ms", "tpot_ms", "e2e_ms", "ttfo_ms", "lateness_ms", "ttft_from_schedule_ms"):
            expected = getattr(derive, name)(record)
            told = found.loc[record.request_id, name]
            assert np.isnan(told) if expected is None else told == pytest.approx(expected), name
    expected = np.concatenate([np.diff(r.event_ns) for r in records if r.event_ns]) / MS
    assert sorted(columns.gaps_ms(frame)) == pytest.approx(sorted(expected))


def test_fillers_are_in_no_column(run):
    frame, records, point = run
    filler = frame.iloc[[-1]].assign(request_id="f", filler=True)
    longer = pd.concat([frame, filler])
    window = point["window_start_ns"], point["window_end_ns"]
    pd.testing.assert_frame_equal(columns.request_metrics(longer), columns.request_metrics(frame))
    np.testing.assert_array_equal(columns.token_slices(longer, *window), columns.token_slices(frame, *window))
    late = replace(records[-1], request_id="f", filler=True, sent_ns=records[-1].ended_ns)
    rows = [summary_of(some, slo=SloSettings(ttft_ms=1.0)) for some in (records, [*records, late])]
    assert rows[0][0] == rows[1][0]


def test_throughput_over_slices_is_the_points_throughput(run):
    frame, _, row = run
    slices = columns.token_slices(frame, int(row["window_start_ns"]), int(row["window_end_ns"]))
    assert slices.mean() == pytest.approx(row["output_throughput_tok_s"])
    inside = columns.in_window(columns.request_metrics(frame), PointRow.from_dict(row))
    assert inside[inside["ok"]]["ttft_ms"].median() == pytest.approx(row["ttft_ms_p50"])


def test_an_answer_of_unknown_length_makes_the_throughput_unknown(run):
    frame, _, row = run
    frame = frame.assign(event_tokens=None, output_tokens=np.nan)
    assert columns.token_slices(frame, int(row["window_start_ns"]), int(row["window_end_ns"])) is None


def test_tokens_that_no_event_told_belong_to_the_last_one_or_are_shared(run):
    frame, _, _ = run
    frame = frame[frame["outcome"] == "ok"].head(2).assign(output_tokens=50)
    told, shared = columns.events(frame), columns.events(frame.assign(event_tokens=None))
    assert told.tokens.sum() == shared.tokens.sum() == 100
    assert told.tokens[39] == 11
    assert shared.tokens[0] == pytest.approx(50 / 40)


def test_nothing_is_made_of_nothing():
    assert columns.request_metrics(pd.DataFrame()).empty
