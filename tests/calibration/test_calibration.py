"""The calibration: its arithmetic, its page, and a small seeded part of what it measures."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import pstdev

import pytest

import calibration.__main__
from calibration import windows
from calibration.__main__ import main
from calibration.cells import CalibrationCell, Line, Promise, lines_of
from calibration.comparisons import AA
from calibration.gate import judged_study
from calibration.page import CalibrationPart, page, read_parts, rows_csv
from calibration.run import all_cells, calibrate, chosen_cells
from calibration.simulate import STEADY, Plant, run_data, simulate_run, simulate_search
from servebench.analysis.statistics import headline_intervals
from servebench.measure.points import point_sample
from servebench.util.errors import ConfigError

SHARE = Promise(name="p", text="a promise", bar=0.05)
POWER = replace(SHARE, at_most=False, bar=0.8)
BIAS = replace(SHARE, kind="bias", bar=0.02)
WIDTH = replace(SHARE, kind="width", bar=2.0)


LENGTHS = "workload.output_tokens={kind: lognormal, mean: 100, stdev: 75, min: 8, max: 500}"


@pytest.mark.slow
def test_requests_that_end_last_are_measured_at_the_level():
    """With two requests a stream half of them end while the level drains: their TPOT would be 11% too low."""
    steady = replace(STEADY, wander_sd=0.0, step_noise=0.0)

    def tpot_ms(requests, seeds, hold="true"):
        words = (LENGTHS, "workload.exact_output=true", "load.concurrency=[32]", f"load.requests={requests}")
        plant = Plant(words=(*words, f"load.hold_level={hold}"), variation=steady)
        rows = [simulate_run(plant, f"k{seed}", seed=seed).rows[0] for seed in seeds]
        assert all(row.requests_ok == requests for row in rows)
        return sum(row.tpot_ms_mean or 0.0 for row in rows) / len(rows)

    truth = tpot_ms(1600, [9])
    assert tpot_ms(64, range(4)) == pytest.approx(truth, rel=0.02)
    assert tpot_ms(64, range(4), hold="false") < 0.92 * truth


def test_points_know_the_mean_length_of_their_answers():
    """Their intervals leave out what the lengths explain, where these are drawn from a distribution."""
    words = ("workload.output_tokens={kind: uniform, min: 8, max: 120}", "load.concurrency=[4]", "load.requests=120")
    run = simulate_run(Plant(words=(*words, "workload.exact_output=true"), variation=STEADY), "known")
    (row,), (records,) = run.rows, run.records
    without = headline_intervals(point_sample(records, 4))
    known = headline_intervals(point_sample(records, 4, mean_tokens=64.0))
    assert (row.e2e_ms_mean_low, row.e2e_ms_mean_high) == pytest.approx(known["e2e_ms_mean"])
    assert known["e2e_ms_mean"] != without["e2e_ms_mean"]
    assert (row.ttft_ms_mean_low, row.ttft_ms_mean_high) == pytest.approx(without["ttft_ms_mean"])


def line(promise, values):
    cell = CalibrationCell(promises=(promise,), name="c", trial=lambda seed, truth: {})
    (found,) = lines_of(cell, [{(promise, ""): value} for value in values])
    return found


@pytest.mark.parametrize(
    ("promise", "values", "verdict"),
    [
        (SHARE, [0.0] * 100, "met"),
        (SHARE, [1.0] * 7 + [0.0] * 93, "open"),
        (SHARE, [1.0] * 20 + [0.0] * 80, "not met"),
        (SHARE, [1.0] * 4 + [0.0] * 96, "open"),
        (POWER, [1.0] * 90 + [0.0] * 10, "met"),
        (POWER, [1.0] * 82 + [0.0] * 18, "open"),
        (POWER, [1.0] * 75 + [0.0] * 25, "open"),
        (POWER, [1.0] * 20 + [0.0] * 80, "not met"),
        (BIAS, [0.01, 0.011, 0.012], "met"),
        (BIAS, [-0.1, 0.2, 0.0], "open"),
        (BIAS, [-0.10, -0.11, -0.12], "not met"),
        (WIDTH, [(9.0, 2.0), (10.0, 2.0), (11.0, 2.0)] * 10, "met"),
        (WIDTH, [(9.0, 20.0), (10.0, 20.0), (11.0, 20.0)] * 10, "not met"),
        (SHARE, [None, None], "no data"),
    ],
)
def test_a_promise_is_kept_broken_or_open(promise, values, verdict):
    """By the whole interval."""
    found = line(promise, values)
    assert found.verdict == verdict
    assert found.trials + found.silent == len(values)


def test_lines_show_wilson_intervals():
    """Of the repetitions in which something was said."""
    found = line(SHARE, [1.0, None, *[0.0] * 9])
    assert (found.trials, found.silent, found.measured) == (10, 1, pytest.approx(0.1))
    assert (found.low, found.high) == (pytest.approx(0.0179, abs=1e-3), pytest.approx(0.4042, abs=1e-3))


def test_the_page_is_made_of_stored_parts(tmp_path):
    """A summary of each promise with its commit and date; every row with its verdict is in the CSV."""
    lines = (line(SHARE, [0.0] * 40), line(replace(BIAS, name="q"), [0.5, 0.5, 0.501]))
    part = CalibrationPart(
        name="p", commit="abc", date="2026-11-25", seed=3, repetitions=40, lines=lines, complete=True
    )
    part.write(tmp_path)
    assert read_parts(tmp_path) == [part]
    text = page([part])
    assert "**0 of 2 rows are met, 1 are open, 1 are not met**" in text
    assert "| p | a promise | ≤ 5% | 0/1/0/0 |" in text
    assert "- abc (2026-11-25): p" in text
    head, first, second = rows_csv([part]).splitlines()
    assert head.startswith("promise,cell,repetitions")
    assert first == "p,c,40,0,0,0,0.087622,≤ 5%,open,abc,2026-11-25,3"
    assert second.endswith("not met,abc,2026-11-25,3")


def test_a_stored_part_is_not_measured_again(tmp_path, monkeypatch, capfd):
    """As long as commit, seed and repetitions are the same."""
    cell = CalibrationCell(promises=(SHARE,), name="c", trial=lambda seed, truth: {(SHARE, ""): 0.0})
    monkeypatch.setattr(calibration.__main__, "chosen_cells", lambda only, named: [cell])
    words = ["--repetitions", "100", "--output", str(tmp_path / "calibration.md")]
    assert main(words, standalone_mode=False) == 0
    assert "1 of 1 rows are met" in (tmp_path / "calibration.md").read_text()
    assert main(words, standalone_mode=False) == 0
    assert "p: stored with this commit" in capfd.readouterr().err
    assert (tmp_path / "calibration.csv").read_text().count("\n") == 2


def test_promises_are_chosen_by_name():
    """Every promise has cells, and a wrong name is reported with the right ones."""

    def names(cells):
        return {promise.name for cell in cells for promise in cell.promises}

    soon, all_of_it = (chosen_cells([f"slices_decided_{one}"]) for one in ("soon", "aa"))
    assert [cell.name for cell in soon] == [cell.name for cell in all_of_it]
    assert names(chosen_cells(["search_*", "aa"])) == {"search_near", "search_above", "search_bracket", "aa"}
    assert {"aa", "power5", "gate", "recommend", "coverage", "open_loop", "search_above", "stationary"} <= names(
        all_cells()
    )
    with pytest.raises(ConfigError, match="matches no promise; available: aa, answer, power5"):
        chosen_cells(["bb"])
    assert {cell.name for cell in chosen_cells(["until"], "64 users")} == {
        "64 users, 64 ± 40 tokens, load.until=10%",
        "64 users, 64 ± 40 tokens, load.until=5%",
    }
    with pytest.raises(
        ConfigError, match="--cell 65 users is in no name of a cell; they begin with: 8 users; 32 users; 1 user"
    ):
        chosen_cells(["until"], "65 users")


def test_a_run_in_memory_is_reproducible_and_starts_differ():
    """The same key gives the same columns; starts of one run are planted apart."""
    plant = Plant(words=("load.concurrency=[4]", "load.requests=50"), variation=replace(STEADY, start_sd=0.05))
    one, two = (simulate_run(plant, "k", seed=5, starts=2) for _ in range(2))
    assert one.rows == two.rows
    first, second = one.rows
    assert (first.repeat, second.repeat) == (0, 1)
    assert abs(first.output_throughput_tok_s / second.output_throughput_tok_s - 1) > 0.005
    data = run_data(one, plant, "r")
    assert data.point_rows == one.rows
    assert len(data.requests) == 100
    assert simulate_run(plant, "other", seed=5).rows[0].ttft_ms_p50 != first.ttft_ms_p50


def test_a_search_in_memory_has_an_answer():
    """That of the search of a real run."""
    words = ("load=slo", "load.search.upper=8", "slo.ttft_ms=10000", "slo.attainment=0.9")
    found = simulate_search(Plant(words=words, variation=STEADY), "k")
    assert found.search is not None
    assert found.search.level == 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one start a side, starts differ by 3%", "5 starts a side, starts differ by 3%"])
def test_equal_engines_are_not_called_different(name):
    """A seeded part of `make calibrate`."""
    (cell,) = (cell for cell in chosen_cells(["aa"]) if cell.name == name)
    seen: list[Line] = []
    (found,) = calibrate([cell], repetitions=4, seed=1, progress=seen.extend)
    assert seen == [found]
    assert found.promise == AA
    assert found.trials >= 2
    assert found.measured == 0.0


@pytest.mark.slow
def test_a_slowdown_is_found_with_five_starts():
    """10%, where starts differ by 1%."""
    (cell,) = chosen_cells(["power10"])
    assert [line.measured for line in calibrate([cell], repetitions=4, seed=1)] == [1.0, 1.0, 1.0]


PROMISED = (
    *("output_throughput_tok_s", "ttft_ms_mean", "ttft_ms_p50", "ttft_ms_p95"),
    *("tpot_ms_mean", "itl_ms_mean", "e2e_ms_mean"),
)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [windows.SCENARIOS[0], windows.SCENARIOS[2]], ids=lambda one: one.name)
def test_intervals_hold_the_truth_as_often_as_promised(scenario, monkeypatch):
    """With 100 requests, for fewer repetitions than the command makes: at least 92%, less two standard errors. Intervals that
    take requests for independent hold it in 14 to 68% of points."""
    monkeypatch.setattr(windows, "TRUTH_REQUESTS", 6000)
    (cell,) = [one for one in windows.cells() if one.name == f"{scenario.name}, 100 requests"]
    lines = {line.cell.rsplit(", ", 1)[1]: line for line in calibrate([replace(cell, share=1.0)], repetitions=40, seed=4)
             if line.promise is windows.COVERAGE}  # fmt: skip
    for name in PROMISED:
        assert lines[name].trials >= 30, name
        assert lines[name].measured >= 0.92 - 2 * (0.92 * 0.08 / lines[name].trials) ** 0.5, name


@pytest.mark.slow
def test_random_arrivals_do_not_bias_an_open_loop():
    """Throughput, goodput and TTFT of answers of 1.5 s at 4/s, of which the long-run values are known; points scatter by less
    than the 10% that they would without arrivals at exactly their rate."""
    load = windows.OpenLoad(seconds=1.5, rate=4.0, arrival="poisson")
    truth = {"output_throughput_tok_s": 520.0, "goodput_req_s": 4.0, "ttft_ms_mean": 41.64}
    errors = [windows._open_loop(seed, truth, load=load) for seed in range(10)]
    for promise, name in errors[0]:
        values = [one[promise, name] for one in errors]
        assert abs(sum(values) / len(values)) <= 0.02, name
        assert pstdev(values) <= 0.06, name


def test_an_interrupt_ends_it(monkeypatch):
    """Within a simulated point, too, which a run would store and leave."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("servebench.run.simulated._Client.run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulate_run(Plant(words=("load.concurrency=[1]", "load.requests=10")), "0")


def test_the_help_names_every_promise():
    words = set(re.findall(r"\w+", main.help))
    assert {promise.name for cell in all_cells() for promise in cell.promises} <= words


@pytest.mark.slow
@pytest.mark.parametrize("in_turns", [True, False])
def test_equal_builds_pass_the_gate_at_the_number_of_starts_that_it_names(in_turns):
    """And a build that is worse by the limit does not; 20 studies each, all with fixed seeds."""
    equal, lost = (
        [judged_study(seed, spread=0.01, in_turns=in_turns, gain=gain)[:2] for seed in range(20)]
        for gain in (0.0, -0.05)
    )
    assert all(needed is not None and 2 <= needed <= 12 for needed, _ in equal)
    assert sum(verdict == "not worse" for _, verdict in equal) >= 18
    assert sum(verdict == "not worse" for _, verdict in lost) <= 3
