"""Numbers by other tools' definitions, held to figures worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from servebench.cli.main import dispatch
from servebench.contracts.point_row import PointRow
from servebench.measure.dialects import DIALECTS, retell
from servebench.store.layout import RunFolder
from servebench.store.tables import RecordWriter, read_requests
from servebench.util.errors import ConfigError
from support.studies import SimulatedEngine, SimulatedLoad, closed_loop

MS = 1_000_000


@pytest.fixture
def one(tmp_path):
    """Two requests of 5 tokens, 100 ms to the first, 10 ms a token, 3 ms from the last to the end of the stream, of which
    the first opened its connection 20 ms before it was sent. 8 tokens were asked for."""
    shape = SimulatedLoad(requests=2)
    template = closed_loop(SimulatedEngine(), shape, 1, 0, "s/r", "c1")
    records = []
    for index, record in enumerate(template):
        sent = index * 200 * MS
        stamps = [sent + (100 + 10 * k) * MS for k in range(5)]
        records.append(
            replace(
                record,
                scheduled_ns=sent,
                connect_started_ns=sent - 20 * MS if index == 0 else None,
                sent_ns=sent,
                first_event_ns=stamps[0],
                last_event_ns=stamps[-1],
                ended_ns=stamps[-1] + 3 * MS,
                event_ns=stamps,
                event_tokens=[1] * 5,
                output_tokens=5,
                asked_output_tokens=8,
            )
        )
    folder = RunFolder(tmp_path / "run")
    writer = RecordWriter(folder)
    folder.path.mkdir()
    writer.append(records)
    writer.close()
    return read_requests(folder)


ROW = PointRow(output_throughput_tok_s=20.0, ttft_ms_mean=100.0)
WHOLE_S = 0.343


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "metric", "expected"),
    [
        ("vllm", "ttft_ms_mean", 110.0),
        ("vllm", "tpot_ms_mean", 10.0),
        ("vllm", "e2e_ms_mean", 150.0),  # 140, and half of the 20 ms of one connection
        ("vllm", "itl_ms_p50", 10.0),
        ("vllm", "output_throughput_tok_s", 10 / WHOLE_S),
        ("sglang", "tpot_ms_mean", 43 / 7),
        ("sglang", "e2e_ms_p50", 153.0),
        ("sglang", "output_throughput_tok_s", 16 / WHOLE_S),
        ("aiperf", "itl_ms_mean", 10.0),
        ("aiperf", "output_throughput_tok_s", 10 / 0.340),
        ("guidellm", "ttft_ms_mean", 100.0),
        ("guidellm", "tpot_ms_mean", 28.0),
        ("guidellm", "itl_ms_mean", 10.0),
    ],
)
def test_each_tools_number_is_that_of_its_definition(one, tool, metric, expected):
    found = {row.metric: row for row in retell(one, ROW, DIALECTS[tool])}
    assert found[metric].theirs == pytest.approx(expected)


def test_the_difference_is_parted_into_window_and_definition(one):
    row = {row.metric: row for row in retell(one, ROW, DIALECTS["vllm"])}["ttft_ms_mean"]
    assert (row.own, row.whole_run, row.theirs) == (100.0, 100.0, 110.0)
    assert row.by_window == 0
    assert row.by_definition == pytest.approx(0.10)
    assert "before the connection" in row.because
    throughput = retell(one, ROW, DIALECTS["vllm"])[0]
    assert throughput.by_window == pytest.approx(10 / WHOLE_S / 20 - 1)
    assert throughput.by_definition == pytest.approx(0)


def test_a_metric_that_a_tool_lacks_is_left_out(one):
    assert not [row for row in retell(one, ROW, DIALECTS["aiperf"]) if row.metric.startswith("tpot")]


def test_a_first_event_of_several_tokens_is_another_definition_and_not_the_window(one):
    several = one.assign(event_tokens=[[2, 1, 1, 1, 1]] * 2, output_tokens=6)
    row = {row.metric: row for row in retell(several, replace(ROW, tpot_ms_mean=10.0), DIALECTS["vllm"])}[
        "tpot_ms_mean"
    ]
    assert (row.by_window, row.theirs) == (0, pytest.approx(8.0))
    assert row.because == "counts the first event as one token"


def test_a_tool_would_not_wait_between_slices(one):
    """143 ms of each request; 57 ms between them belong to another engine."""
    found = {row.metric: row for row in retell(one, replace(ROW, slices=2), DIALECTS["aiperf"])}
    row = found["output_throughput_tok_s"]
    assert (row.whole_run, row.theirs) == (pytest.approx(10 / 0.286), pytest.approx(10 / 0.283))


def test_nothing_is_told_of_requests_that_all_failed(one):
    assert retell(one.assign(outcome="timeout"), ROW, DIALECTS["vllm"]) == []


def test_unknown_lengths_make_throughput_unknown_and_not_zero(one):
    found = {row.metric: row for row in retell(one.assign(output_tokens=np.nan), ROW, DIALECTS["vllm"])}
    assert found["output_throughput_tok_s"].theirs is None
    assert "tpot_ms_mean" not in found


def test_the_verb_tells_every_point_and_explains(make_study, capsys):
    study = make_study((SimulatedEngine(fail_share=0.1), SimulatedLoad(levels=(1, 4), requests=30)))
    for tool in DIALECTS:
        assert dispatch(["report", str(study), "--as", tool]) == 0
        told = capsys.readouterr().out
        assert ", 1 user," in told
        assert ", 4 users," in told
        assert "by the definition" in told
    repeated = make_study((SimulatedEngine(), SimulatedLoad(levels=(1,), requests=30, repeats=2)))
    assert dispatch(["report", str(repeated), "--as", "vllm"]) == 0
    told = capsys.readouterr().out
    assert "repeat 0" in told
    assert "repeat 1" in told
    with pytest.raises(ConfigError, match="--as must be vllm, sglang"):
        dispatch(["report", str(study), "--as", "jmeter"])
