"""Verdicts on simulated runs: the decisions are right as often as they say."""

from dataclasses import replace

import numpy as np
import pytest

from servebench.analysis.comparison.compare import compare, holm
from servebench.analysis.comparison.model import METRICS, ComparedPoint, Side
from servebench.analysis.comparison.resampling import statistic
from servebench.analysis.fairness import SettingDifference
from servebench.analysis.stored_runs import side_of
from servebench.contracts.stored import RunData
from support.studies import SimulatedEngine, SimulatedLoad, write_simulated_run

SHARED = ("ttft_ms_p50", "tpot_ms_p50", "output_throughput_tok_s")


@pytest.fixture
def side(tmp_path):
    """A simulated run as one side of a comparison, read from disk as any other."""
    from servebench.store import StudyFolder
    from servebench.store import studies as read

    def make(name="run", *, seed=0, requests=200, level=8, repeats=1, **engine) -> Side:
        folder = StudyFolder(tmp_path / "study").run(f"{name}-{seed}-{len(list(tmp_path.glob('study/*')))}")
        shape = SimulatedLoad(levels=(level,), requests=requests, seed=seed, repeats=repeats)
        write_simulated_run(folder, SimulatedEngine(**engine), shape)
        run: RunData = read.load_run(folder.path)
        return Side(name=name, samples=tuple(replace(s, verdict="valid", doubts=()) for s in side_of(run).samples))

    return make


def one(baseline, candidate, unequal=(), **options):
    return compare([(baseline, candidate, unequal)], **options)[0]


def rows(comparison):
    return {row.metric.name: row for row in comparison.rows}


def test_two_runs_of_one_engine_are_no_difference_nine_times_in_ten(side):
    """Each start of the engine is up to some percent faster or slower than another, and its speed wanders."""
    sides = [side(f"r{seed}", seed=seed, run_sd=0.01, requests=150) for seed in range(12)]
    verdicts = [one(a, b).result for a, b in zip(sides[::2], sides[1::2], strict=True)]
    verdicts += [one(b, a).result for a, b in zip(sides[1::2], sides[2::2], strict=False)]
    assert verdicts.count("no difference") >= 0.9 * len(verdicts), verdicts


def test_a_planted_slowdown_of_ten_percent_is_found(side):
    """Every time, and its interval holds the truth in most."""
    covered = []
    for seed in range(5):
        found = one(side("a", seed=seed, run_sd=0.01), side("b", seed=100 + seed, run_sd=0.01, slow=1.1))
        assert found.result == "slower"
        assert "b is slower" in found.summary
        assert "e2e_ms_p50" in [row.metric.name for row in found.regressions]
        effect = rows(found)["e2e_ms_p50"]
        assert 0.05 < effect.effect < 0.15
        covered.append(effect.low < 0.10 < effect.high)
    assert sum(covered) >= 3


def test_a_faster_engine_is_faster_and_its_baseline_slower(side):
    fast, slow = side("fast", seed=1), side("slow", seed=2, slow=1.3)
    assert one(slow, fast).result == "faster"
    assert one(fast, slow).result == "slower"
    assert rows(one(fast, slow))["output_throughput_tok_s"].effect == pytest.approx(-0.23, abs=0.04)


def test_the_same_requests_are_paired_and_others_are_not(side):
    a, b = side("a", seed=1), side("b", seed=2)
    assert "pairs of the same request" in rows(one(a, b))["ttft_ms_p50"].method
    strangers = Side(
        name="b", samples=tuple(replace(s, request_ids=tuple("x" + i for i in s.request_ids)) for s in b.samples)
    )
    assert "permutation" in rows(one(a, strangers))["ttft_ms_p50"].method


def test_pairing_sees_through_requests_of_very_different_length():
    rng = np.random.default_rng(3)
    e2e = rng.lognormal(6, 1.0, 200)
    ids = tuple(map(str, range(200)))

    def sample(values, names):
        return Side(name="s", samples=(ComparedPoint(level="8", repeat=0, verdict="valid", request_ids=names, sizes=np.ones(200),
                                              failed=np.zeros(200, dtype=bool), e2e_ms=values),))  # fmt: skip

    slower = e2e * 1.1 * rng.lognormal(0, 0.02, 200)
    paired = rows(one(sample(e2e, ids), sample(slower, ids)))["e2e_ms_p50"]
    apart = rows(one(sample(e2e, ids), sample(slower, tuple("y" + i for i in ids))))["e2e_ms_p50"]
    assert paired.result == "slower"
    assert paired.effect == pytest.approx(0.10, abs=0.01)
    assert apart.result == "not enough data"


def test_a_failed_request_is_worse_than_any_latency(side):
    good, failing = side("good", seed=1), side("failing", seed=2, fail_share=0.3)
    found = rows(one(good, failing))
    assert found["failed_share"].result == "slower"
    assert found["failed_share"].effect == pytest.approx(0.3, abs=0.1)
    assert found["ttft_ms_p99"].candidate == np.inf
    assert found["ttft_ms_p99"].result == "slower"
    assert found["ttft_ms_p99"].effect == np.inf
    both = rows(one(failing, side("too", seed=3, fail_share=0.3)))
    assert both["ttft_ms_p99"].result == "not enough data"
    assert "failed on both sides" in both["ttft_ms_p99"].why
    assert found["ttft_ms_p50"].effect > 0.05


def test_repeats_are_compared_by_welch_and_widen_the_interval(side):
    a = side("a", seed=1, repeats=4, requests=80, run_sd=0.03)
    b = side("b", seed=2, repeats=4, requests=80, run_sd=0.03)
    row = rows(one(a, b))["output_throughput_tok_s"]
    assert row.method == "Welch's t-test over 4 and 4 repeats"
    assert row.low < 0 < row.high
    still = one(a, b, start_sd=0.0).rows[0]
    assert (still.high - still.low) < (row.high - row.low)
    slow = side("c", seed=3, repeats=4, requests=80, run_sd=0.01, slow=1.25)
    assert one(a, slow).result == "slower"


def test_only_valid_points_compete_and_doubtful_ones_are_shown(side):
    a, b = side("a", seed=1), side("b", seed=2, slow=1.5)
    doubtful = Side(name="b", samples=tuple(replace(s, verdict="doubtful", doubts=("too_short",)) for s in b.samples))
    found = one(a, doubtful)
    assert found.result == "not enough data"
    assert rows(found)["e2e_ms_p50"].result == "slower"
    assert not rows(found)["e2e_ms_p50"].competes
    assert "(too_short)" in found.summary
    assert "--with-doubtful" in found.summary
    assert one(a, doubtful, with_doubtful=True).result == "slower"
    void = Side(name="b", samples=tuple(replace(s, verdict="void", doubts=("level_not_reached",)) for s in b.samples))
    assert one(a, void, with_doubtful=True).result == "not enough data"
    assert "void point: level_not_reached" in one(a, void).summary


def test_unequal_settings_that_matter_are_the_verdict(side):
    a, b = side("a", seed=1), side("b", seed=2, slow=2.0)
    dtype = SettingDifference(key="engine.dtype", baseline="auto", candidate="fp8", matters=True, reason="precision")
    found = one(a, b, (dtype,))
    assert found.result == "unequal_settings"
    assert {row.result for row in found.rows} == {"unequal_settings"}
    assert "engine.dtype" in found.summary
    assert one(a, b, (replace(dtype, matters=False),)).result == "slower"


def test_too_few_requests_are_not_enough_data(side):
    found = one(side("a", seed=1, requests=8, level=2), side("b", seed=2, requests=8, level=2, slow=1.2))
    assert {r.result for r in found.rows if r.metric.percent is not None} == {"not enough data"}
    assert "10 are needed" in rows(found)["ttft_ms_p50"].why


def test_levels_missing_on_one_side_are_listed(side):
    found = one(side("a", level=4), side("b", level=8))
    assert [row.why for row in found.rows] == ["the candidate has no such level", "the baseline has no such level"]


def test_all_rows_of_all_pairs_share_the_correction(side):
    a, b, c = side("a", seed=1), side("b", seed=2, slow=1.2), side("c", seed=3)
    alone, together = one(a, b), compare([(a, b, ()), (a, c, ())])[0]
    assert rows(alone)["ttft_ms_p50"].p == rows(together)["ttft_ms_p50"].p
    assert rows(alone)["ttft_ms_p50"].p_corrected < rows(together)["ttft_ms_p50"].p_corrected


@pytest.mark.parametrize(
    ("p_values", "expected"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.5], [0.5]),
        ([None, 0.02, None], [None, 0.02, None]),
        ([0.9, 0.8], [1.0, 1.0]),
        ([], []),
    ],
)
def test_holm(p_values, expected):
    assert holm(p_values) == pytest.approx(expected)


def test_the_statistic_is_numpys_percentile_and_lets_failures_be_infinite():
    values = np.random.default_rng(0).lognormal(size=(3, 41))
    for percent in (50, 99):
        assert statistic(values, percent) == pytest.approx(np.percentile(values, percent, axis=-1))
    assert statistic(np.array([1.0, 2.0, np.inf]), 50) == 2.0
    assert statistic(np.array([1.0, np.inf, np.inf]), 50) == np.inf
    assert {metric.name for metric in METRICS} >= set(SHARED)
