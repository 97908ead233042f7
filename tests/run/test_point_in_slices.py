"""A point that is measured in slices, in turns with another engine: the columns and warnings of an ordinary one."""

import json
import random
from itertools import pairwise

import numpy as np
import pytest

from servebench.analysis.stored_runs import samples_of
from servebench.analysis.warnings.disturbed import taker_of
from servebench.contracts.stored import RunData
from servebench.measure.columns import in_window, request_metrics
from servebench.run.point import build_point
from support.machines import SECOND, machine_readings
from support.records import phase_facts, phase_report, point_evidence, record, requests_frame
from support.settings import run_settings

TOKEN_S, STREAMS = 0.02, 4
TRUE_TOK_S = STREAMS / TOKEN_S
BEGAN_S = 5.0
LEAD_S = 1.5
SLICES = [(8.0 * k + 4.0 * (k % 3 == 1), 8.0 * k + 4.0 * (k % 3 == 1) + 4.0) for k in range(12)]
"""In turns with another engine, in a changing order."""
ONE_SLICE = [(0.0, 48.0)]
VALUES = (
    *(
        "output_throughput_tok_s",
        "request_throughput_req_s",
        "itl_ms_mean",
        "tpot_ms_p50",
        "ttft_ms_p50",
        "e2e_ms_mean",
    ),
    *("goodput_req_s", "average_in_flight"),
)


def closed_loop(slices, *, seed=0, speed=lambda at: 1.0, most=40, drain_s=None):
    """Records of an engine of constant speed, or of one that is faster by `speed`: streams that start one after another in each
    slice and send until it closes. What has not ended `drain_s` after that is given up."""
    rng = random.Random(seed)
    records = []
    for opens, closes in slices:
        for stream in range(STREAMS):
            at = BEGAN_S + opens + 0.307 * stream + 0.0031
            while at < BEGAN_S + closes:
                each_s = TOKEN_S / speed(at)
                moments = [round(SECOND * (at + each_s * (n + 1))) for n in range(rng.randint(8, most))]
                name, ends = f"r{len(records)}", {}
                if drain_s is not None and moments[-1] > (over := round(SECOND * (BEGAN_S + closes + drain_s))):
                    ends = {"outcome": "abandoned", "ended_ns": over, "asked_output_tokens": len(moments)}
                kept = [one for one in moments if not ends or one <= ends["ended_ns"]]
                records.append(record(name, sent_ns=round(SECOND * at), event_ns=kept, point="c4", **ends))
                at = moments[-1] / SECOND
    return records


def built(records, slices=(), readings=(), **changes):
    ended = max(one.ended_ns for one in records)
    report = phase_report(
        started_ns=round(BEGAN_S * SECOND), ended_ns=ended, planned=len(records), sent=len(records),
        elapsed_s=ended / SECOND - BEGAN_S, cpu_s=10.0,
    )  # fmt: skip
    facts = phase_facts(
        point="c4", concurrency=STREAMS, slices=slices, slice_lead_s=LEAD_S, slice_group="g" if slices else None
    )
    settings = run_settings(**changes)
    return build_point(
        point_evidence(settings=settings, facts=facts, records=records, report=report, readings=readings)
    )


def read_again(row, records):
    """The point as comparisons read it from what is stored."""
    run = RunData(
        study_id="s", name="r", path="", state={}, manifest={}, rows=lambda: [row],
        tables=lambda *_: requests_frame(records),
    )  # fmt: skip
    (point,) = samples_of(run)
    return point


def slo():
    from servebench.contracts.settings import SloSettings

    return SloSettings(e2e_ms=500.0)


def test_it_is_valid_and_has_the_values_of_an_ordinary_point():
    point, whole = built(closed_loop(SLICES), SLICES, slo=slo()), built(closed_loop(ONE_SLICE, seed=1), slo=slo())
    row, ordinary = point.judged_row, whole.judged_row
    assert (row.verdict, point.doubts) == ("valid", ())
    assert ordinary.verdict == "valid"
    for name in VALUES:
        near = {"goodput_req_s": 0.2}.get(name, 0.05)
        assert row[name] == pytest.approx(ordinary[name], rel=near), name
    assert row.output_throughput_tok_s == pytest.approx(TRUE_TOK_S, rel=0.01)
    assert row.output_throughput_tok_s_low <= TRUE_TOK_S <= row.output_throughput_tok_s_high
    assert row.window_s == pytest.approx(sum(closes - opens - LEAD_S for opens, closes in SLICES), abs=0.01)
    assert row.output_throughput_whole_run_tok_s == pytest.approx(TRUE_TOK_S, rel=0.2)
    assert row.client_cpu_share == pytest.approx(10.0 / sum(closes - opens for opens, closes in SLICES), rel=0.2)
    assert row.lock_step == pytest.approx(0.0, abs=0.3)
    assert (row.level_reached, row.slices, row.slice_group) == (True, 12, "g")
    assert (ordinary.slices, ordinary.slice_group, ordinary.slice_values) == (None, None, None)


def test_it_has_a_value_in_each_slice():
    values = json.loads(built(closed_loop(SLICES), SLICES).row.slice_values)
    assert set(values) == {"output_throughput_tok_s", "ttft_ms_p50", "tpot_ms_p50", "e2e_ms_p50"}
    assert {len(own) for own in values.values()} == {len(SLICES)}
    assert values["output_throughput_tok_s"] == pytest.approx([TRUE_TOK_S] * 12, rel=0.03)
    assert values["tpot_ms_p50"] == pytest.approx([1000 * TOKEN_S] * 12, rel=1e-3)
    assert values["e2e_ms_p50"] != pytest.approx([values["e2e_ms_p50"][0]] * 12, rel=0.01)


def test_requests_that_are_sent_where_the_load_falls_do_not_count():
    """Of the row and of what comparisons read from stored requests the same ones."""
    records = closed_loop(SLICES)
    row = built(records, SLICES).row
    metrics = request_metrics(requests_frame(records))
    counted = in_window(metrics, row)
    assert len(counted) == row.e2e_ms_n
    answer_s = row.e2e_ms_mean / 1000
    for sent in counted["sent_ns"] / SECOND - BEGAN_S:
        assert any(opens + LEAD_S <= sent <= closes - 0.95 * answer_s for opens, closes in SLICES)
    assert row.e2e_ms_n < row.requests_ok


def test_long_answers_count_as_often_as_short_ones():
    """Those that end after their slice, too."""
    slices = [(8.0 * k, 8.0 * k + 3.0) for k in range(60)]
    means = [built(closed_loop(slices, seed=seed), slices).row.output_tokens_mean for seed in range(4)]
    assert np.mean(means) == pytest.approx(24, rel=0.025)


def test_what_is_given_up_after_a_slice_is_missing_in_no_rate():
    """Answers of up to 3 s, which are given up half a second after their slice."""
    slices = [(8.0 * k, 8.0 * k + 5.0) for k in range(40)]
    records = closed_loop(slices, most=150, drain_s=0.5)
    gone = [one for one in records if one.outcome == "abandoned"]
    assert len(gone) > 0.1 * len(records)
    point = built(records, slices)
    row = point.judged_row
    assert row.output_throughput_tok_s == pytest.approx(TRUE_TOK_S, rel=0.01)
    assert row.request_throughput_req_s == pytest.approx(TRUE_TOK_S / 79, rel=0.07)
    assert row.requests_failed == 0
    (doubt,) = (one for one in point.doubts if one.code == "answers_cut_off")
    counted = in_window(request_metrics(requests_frame(records)), row)
    cut = int((counted["outcome"] == "abandoned").sum())
    assert cut > 0
    assert doubt.message.startswith(f"{cut} of {len(counted)} requests ")
    compared = read_again(row, records)
    assert float(np.mean(compared.throughput_tok_s)) == pytest.approx(row.output_throughput_tok_s, rel=1e-3)


def test_a_disturbance_in_a_slice_is_left_out_and_the_other_engine_is_none():
    """A hog for some slices, and one that is there only while the other engine has the load."""
    hog, pauses = (BEGAN_S + 36.5, BEGAN_S + 39.5), [(a[1], b[0]) for a, b in pairwise(SLICES)]
    other = [(BEGAN_S + low + 0.1, BEGAN_S + high) for low, high in pauses if high - low > 2]
    records = closed_loop(SLICES, speed=lambda at: 0.5 if hog[0] <= at <= hog[1] else 1.0)
    disturbed = built(records, SLICES, machine_readings(110, others={(4711, "python"): [(*hog, 0.9)]}))
    assert [one.code for one in disturbed.doubts] == ["machine_shared"]
    assert disturbed.row.output_throughput_tok_s == pytest.approx(TRUE_TOK_S, rel=0.01)
    assert json.loads(disturbed.row.slice_values)["output_throughput_tok_s"][4] is None
    alone = built(
        closed_loop(SLICES),
        SLICES,
        machine_readings(110, others={(12, "llama-server"): [(*one, 0.9) for one in other]}),
    )
    assert (alone.doubts, alone.row.disturbances, alone.row.disturbed_s) == ((), (), 0.0)


def test_a_slice_of_which_a_part_is_left_out_is_compared_by_the_rest():
    """What is left out took nothing from the rest, and more than half of the slice remains."""
    closes = BEGAN_S + SLICES[4][1]
    hog = {(4711, "python"): [(closes - 1.0, closes, 0.9)]}
    records = closed_loop(SLICES, speed=lambda at: 0.5 if closes - 1.0 <= at <= closes else 1.0)
    point = built(records, SLICES, machine_readings(110, step_s=0.2, others=hog))
    assert [one.code for one in point.doubts] == ["machine_shared"]
    assert json.loads(point.row.slice_values)["output_throughput_tok_s"][4] == pytest.approx(TRUE_TOK_S, rel=0.1)


@pytest.mark.parametrize(("cores", "missing"), [(0.14, {4}), (0.05, set())])
def test_a_slice_of_which_others_took_a_little_is_not_compared(cores, missing):
    """It is too little to leave anything out of the point, and enough to move the ratio of two slices."""
    little = [(BEGAN_S + SLICES[4][0], BEGAN_S + SLICES[4][1], cores)]
    point = built(closed_loop(SLICES), SLICES, machine_readings(110, others={(7, "git"): little}))
    assert (point.doubts, point.row.disturbed_s) == ((), 0.0)
    for values in json.loads(point.row.slice_values).values():
        assert {number for number, one in enumerate(values) if one is None} == missing


@pytest.mark.parametrize("hog", [[(0, 110, 0.8)], [(BEGAN_S + low, BEGAN_S + high, 0.8) for low, high in SLICES]])
def test_a_hog_beside_the_other_engine_is_named_and_not_the_engine(hog):
    pauses = [(a[1], b[0]) for a, b in pairwise(SLICES)]
    other = [(BEGAN_S + low, BEGAN_S + high, 0.9) for low, high in pauses if high - low > 2]
    readings = machine_readings(110, others={(4711, "python"): hog, (12, "llama-server"): other})
    point = built(closed_loop(SLICES), SLICES, readings)
    taker = taker_of([point.judged_row])
    assert (taker.who, taker.pid, point.judged_row.verdict) == ("python", 4711, "void")
    assert not any("llama" in one for one in point.row.disturbances)


def test_a_warm_up_is_cut_from_the_loaded_time():
    """The engine is slow for the first 6 s of its load, which are 14 s of the clock."""
    records = closed_loop(SLICES, speed=lambda at: 0.6 if at - BEGAN_S < 14 else 1.0)
    row = built(records, SLICES).row
    assert row.warmup_cut_s == pytest.approx(5.0, abs=1.6)
    assert row.output_throughput_tok_s == pytest.approx(TRUE_TOK_S, rel=0.01)
    assert json.loads(row.slice_values)["output_throughput_tok_s"][0] is None


def test_a_stopped_point_has_the_slices_that_it_came_to():
    row = built(closed_loop(SLICES[:5]), SLICES).row
    values = json.loads(row.slice_values)["output_throughput_tok_s"]
    assert values[:5] == pytest.approx([TRUE_TOK_S] * 5, rel=0.03)
    assert values[5:] == [None] * 7
    assert row.window_s == pytest.approx(5 * (4.0 - LEAD_S), abs=0.01)


def test_comparisons_read_the_same_throughput():
    records = closed_loop(SLICES)
    row = built(records, SLICES).judged_row
    compared = read_again(row, records)
    assert float(np.mean(compared.throughput_tok_s)) == pytest.approx(row.output_throughput_tok_s, rel=1e-3)
    assert len(compared.ttft_ms) == row.ttft_ms_n
