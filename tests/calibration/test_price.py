"""What an answer costs by the rules of other tools."""

from types import SimpleNamespace

import pytest
from tests.support.records import record_ms

from calibration import price
from calibration.windows import SCENARIOS


def run_of(values):
    """Runs of one second with a TTFT p50 each."""
    rows = [SimpleNamespace(row={"output_throughput_tok_s": 100.0, "ttft_ms_p50": value}) for value in values]
    return lambda number: SimpleNamespace(rows=[rows[number].row], records=[[record_ms(0, (20, 1000), request_id="r")]])


@pytest.mark.parametrize(
    ("values", "runs", "converged"),
    [([100, 101, 99, *[100] * 7], 3, True), ([100, 120, 80, *[100] * 7], 10, False), ([90, 100, 110, *[100] * 7], 8, True)],
)  # fmt: skip
def test_aiperf_makes_runs_until_its_interval_is_narrow(values, runs, converged):
    """By hand: after seven runs the width is 10.7%, after eight 8.9%, and the threshold is 10%."""
    paid = price.aiperf(run_of(values), 0.05)
    assert (round(paid.seconds), paid.claimed) == (runs, converged)


def load(per_window, answer_ms=50):
    """Requests spread evenly over each window of five seconds."""
    sent = [5000 * number + index * (4900 / count) for number, count in enumerate(per_window) for index in range(count)]
    return [record_ms(at, (at + 20, at + answer_ms), request_id=f"{at}") for at in sent]


@pytest.mark.parametrize(
    ("per_window", "seconds", "stable"),
    [([100] * 10, 15, True), ([50, 100, 100, 100, *[100] * 6], 20, True), ([100, 120] * 5, 50, False)],
)
def test_perf_analyzer_waits_for_three_windows_that_are_alike(per_window, seconds, stable):
    paid = price.perf_analyzer(load(per_window), 0.10)
    assert (paid.seconds, paid.claimed) == (seconds, stable)
    assert paid.shown[1].value == pytest.approx(20)


@pytest.mark.slow
def test_the_table_has_a_line_for_each_method_and_precision(monkeypatch):
    """Of the real simulation, with few and short points."""
    monkeypatch.setattr(price, "LOADS", SCENARIOS[:1])
    monkeypatch.setattr(price, "COUNTS", (50,))
    monkeypatch.setattr(price, "RUNS_MAX", 3)
    monkeypatch.setattr(price, "UNTIL_S", 10)
    monkeypatch.setattr(price, "TRIALS_MAX", 3)
    monkeypatch.setattr(price, "WINDOW_S", 1.0)
    lines = price.price_page(2, 0, print).splitlines()
    for method in ("servebench", "50 requests", "AIPerf", "perf_analyzer"):
        for asked in ("±5%", "±10%"):
            assert sum(method in line and asked in line for line in lines) == 1
