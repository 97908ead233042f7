"""The proof judges parts of stored starts as the product judges runs, counts them honestly, and goes on where it was."""

import csv
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from proof import judge
from proof.judge import coverage_lines, draws, part, planted, verdict_lines
from proof.page import ProofPart, page, rows_csv
from proof.studies import Plan, measure, neighbour, studies
from servebench.contracts.level import Level
from servebench.store.studies import load_study
from servebench.util.errors import ConfigError, ServebenchError
from support.studies import SimulatedEngine, SimulatedLoad, write_simulated_study
from support.waiting import wait_until

SIMULATED = ("launch=simulated", "model=llama-3.1-8b-instruct", "gpu=h100")


SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Eight rounds of equal engines and of one that is 30% slower."""
    engine = SimulatedEngine(run_sd=0.01)
    runs = [(engine, SimulatedLoad(levels=(2, 8), starts=8, requests=60, seed=seed)) for seed in (0, 1, 2)]
    runs[2] = (replace(engine, slow=1.3), runs[2][1])
    return load_study(write_simulated_study(tmp_path_factory.mktemp("outputs"), *runs))


@pytest.fixture(scope="module")
def lines(stored):
    with pytest.MonkeyPatch.context() as few:
        few.setattr(judge, "DRAWS", 6)
        few.setattr(judge, "SEQUENCES", 1)
        few.setattr(judge, "STARTS", (2, 5))
        return list(verdict_lines(stored, "e", "none"))


def test_a_part_has_the_points_and_requests_of_its_rounds(stored):
    some = part(stored.runs[0], [1, 3], [Level(2)])
    assert {(row.repeat, row.level) for row in some.point_rows} == {(1, Level(2)), (3, Level(2))}
    assert set(some.requests["point"]) == {"c2-r1", "c2-r3"}


def test_a_draw_takes_all_disjoint_sets_of_an_order_first():
    first, second, *_ = draws(range(6), 3, random.Random(1))
    assert sorted(first + second) == list(range(6))
    for rounds in (3, 40):
        assert len(list(draws(range(rounds), 1, random.Random(1)))) == rounds


@SLOW
def test_equal_engines_are_seldom_different_and_the_change_is_found(lines):
    known = {(one.question, one.levels, one.method, one.starts, one.earlier): one for one in lines}
    for levels in ("2 8", "8"):
        assert known["equal", levels, "compare", 5, 0].share("faster", "slower", "mixed")[0] <= 0.2
        assert known["changed", levels, "compare", 5, 0].share("slower")[0] == 1.0
    assert {one.question for one in lines if one.method == "decided"} == {"equal", "changed"}


@SLOW
def test_overlapping_comparisons_count_as_the_disjoint_ones(lines):
    two = next(one for one in lines if one.method == "compare" and one.starts == 2)
    assert two.trials > two.independent == 4
    share, low, high = replace(two, counts={"faster": 0.1}).share("faster")
    assert share == 0.1
    assert low == 0
    assert high > 0.6  # one of four


def test_the_planted_change_is_that_of_all_rounds(stored):
    for change, low, high in planted(stored.runs[0], stored.runs[2]).values():
        assert low < change < high < -0.15
        assert change == pytest.approx(1 / 1.3 - 1, abs=0.03)


def test_short_points_are_judged_by_the_other_points_of_their_start(tmp_path):
    load = SimulatedLoad(levels=(4,), repeats=12)
    study = load_study(write_simulated_study(tmp_path, (SimulatedEngine(), load)))
    found = {one.question: one for one in coverage_lines(study, "e", "none")}
    assert found["interval of output_throughput_tok_s"].trials == 12
    assert found["interval of output_throughput_tok_s"].counts["inside"] >= 0.9


@SLOW
def test_the_page_has_a_summary_and_the_csv_every_row(lines):
    one = ProofPart(engine="e", neighbour="none", text="measured", lines=lines, changes={Level(2): (-0.2, -0.3, -0.1)})
    text = page([one, ProofPart(engine="f", neighbour="busy", text="nothing")])
    assert "## e, neighbour: none" in text
    assert "2 users -20.0% [-30.0%, -10.0%]" in text
    assert "Not enough rounds" in text
    rows = list(csv.DictReader(rows_csv([one]).splitlines()))
    assert len(rows) == len(lines)
    assert {row["verdict"] for row in rows if row["question"] == "equal"} <= {"met", "open", "not met"}
    assert text.count("\n| ") < len(rows)


def test_an_engine_that_is_not_here_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("SERVEBENCH_REAL_VLLM", raising=False)
    plan = Plan(outputs=tmp_path, levels=(1,), rounds=1, seconds=1, long_points=2)
    with pytest.raises(ConfigError, match="--engine vllm needs SERVEBENCH_REAL_VLLM"):
        studies(["vllm"], ["none"], plan)
    with pytest.raises(ConfigError, match="--engine x is unknown; available: llamacpp"):
        studies(["x"], ["none"], plan)


def test_the_neighbour_burns_cpu_and_ends():
    import psutil

    before = {child.pid for child in psutil.Process().children()}
    with neighbour("busy"):
        (busy,) = (child for child in psutil.Process().children() if child.pid not in before)
        wait_until(lambda: sum(busy.cpu_times()[:2]) >= 0.3)
    assert not busy.is_running()


def is_again(row):
    return row.verdict == "void" or "interrupted" in row.doubts


def stored_starts(one, *, again=True):
    """Return the engine, round, level and start of each point of a study, unless `again` only of those that are not measured
    again: neither void nor interrupted."""
    try:
        runs = load_study(one.path).runs
    except (ServebenchError, FileNotFoundError):  # interrupted before anything was stored
        return set()
    rows = ((run.name, row) for run in runs for row in run.point_rows if again or not is_again(row))
    return {(name, row.repeat, row.level, row.start_id) for name, row in rows}


@SLOW
def test_an_interrupted_proof_goes_on(tmp_path):
    """By the public commands, on simulated engines: each start is fresh, and those stored are kept."""
    plan = Plan(outputs=tmp_path, levels=(1, 4), rounds=2, seconds=6, long_points=2, words=SIMULATED)
    short, long, learn, learned = studies(["llamacpp"], ["none"], plan, change={"max_num_seqs": 1})
    # on a machine that is busy the study may end before anyone looks: then nothing was interrupted
    measure(short, lambda: bool(stored_starts(short)))
    kept = stored_starts(short, again=False)
    assert kept
    assert short.finished or measure(short)
    assert all(measure(one) for one in (long, learn, learned))
    priors = [{row.interval_prior for row in load_study(one.path).runs[0].point_rows} for one in (long, learned)]
    assert priors == [{"flat"}, {"proof_llamacpp_none_learn/00_proof-base_short/c4-r0"}]
    found = stored_starts(short)
    assert kept <= found
    rounds = {(name, repeat, level) for name, repeat, level, _ in found}
    assert len(rounds) == len(found) == 3 * 2 * 2
    # the start that was interrupted may have left a level to the next one
    assert 6 <= len({start for *_, start in found}) <= 7
    command = [
        sys.executable,
        "-m",
        "proof",
        "--outputs",
        tmp_path,
        "--output",
        tmp_path / "p.md",
        "--neighbour",
        "none",
    ]
    subprocess.run([*command, "--minutes", "0"], check=True, env={"PYTHONPATH": str(Path(__file__).parents[1])})
    text = (tmp_path / "p.md").read_text()
    assert "2 rounds; changed: max_num_seqs=1" in text
    assert "long run, after a long point" in text
