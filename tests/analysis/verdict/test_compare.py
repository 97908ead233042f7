"""Verdicts on simulated runs: the decisions are right as often as they say."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from servebench.analysis.estimate import reaches_of
from servebench.analysis.fairness import SettingDifference
from servebench.analysis.start_model import Starts
from servebench.analysis.stored_runs import samples_of
from servebench.analysis.verdict.compare import compare
from servebench.analysis.verdict.families import AskedPair, corrected, holm
from servebench.analysis.verdict.model import ComparedPoint, Side
from servebench.analysis.verdict.reasons import TOO_FEW, Method, MethodKind, ReasonKind
from servebench.analysis.within_run import log_interval, statistic
from servebench.contracts.level import Level
from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import RunData
from servebench.report.wording.comparison import summary_of, verdict_of
from support.studies import SimulatedEngine, SimulatedLoad, write_simulated_run

LEVELS = (1, 4, 8, 16)
FIVE = {"starts": 5, "requests": 60}


def warned(point, **columns):
    return replace(point, row=replace(point.row, **columns))


@pytest.fixture
def side(tmp_path):
    """A simulated run as one side of a comparison, read from disk as any other."""
    from servebench.store import studies as read
    from servebench.store.layout import StudyFolder

    def make(name="run", *, seed=0, requests=200, level=8, repeats=1, starts=1, **engine) -> Side:
        folder = StudyFolder(tmp_path / "study").run(f"{name}-{seed}-{len(list(tmp_path.glob('study/*')))}")
        load = SimulatedLoad(levels=(level,), requests=requests, seed=seed, repeats=repeats, starts=starts)
        write_simulated_run(folder, SimulatedEngine(**engine), load)
        run: RunData = read.load_run(folder.path)
        return Side(name=name, samples=tuple(warned(s, verdict="valid", doubts=()) for s in samples_of(run)))

    return make


def quick_side(rng, *, starts, start_sd, slow=1.0, requests=60):
    """A side in memory: four levels, requests with the same ids on both sides, starts that differ by `start_sd`."""
    points = []
    for start in range(starts):
        pace = slow * np.exp(rng.normal(0, start_sd))
        for level in LEVELS:
            wander = np.exp(rng.normal(0, 0.005))
            base = np.random.default_rng((start, level)).lognormal(3, 0.5, requests)
            noise = rng.lognormal(0, 0.03, (3, requests))
            points.append(
                ComparedPoint(
                    row=PointRow(concurrency=level, repeat=start, verdict="valid", start_id=f"s{start}"),
                    request_ids=tuple(map(str, range(requests))), sizes=np.ones(requests),
                    failed=np.zeros(requests, dtype=bool), ttft_ms=base * pace * wander * noise[0],
                    tpot_ms=10 * pace * wander * noise[1], e2e_ms=30 * base * pace * wander * noise[2],
                    throughput_tok_s=100 / pace / wander * rng.lognormal(0, 0.02, 64),
                )
            )  # fmt: skip
    return Side(name="side", samples=tuple(points))


def one(baseline, candidate, unequal=(), **options):
    return compare([(baseline, candidate, unequal)], **options)[0]


def rows(comparison):
    return {row.metric.name: row for row in comparison.rows}


@pytest.mark.slow
@pytest.mark.parametrize("start_sd", [0.0, 0.01, 0.03])
def test_equal_engines_are_called_different_in_at_most_one_comparison_of_twenty(start_sd):
    """Five starts each, four levels: the share of false verdicts stays under its bound of chance (0.05 + 3 errors)."""
    rng = np.random.default_rng(7)
    sides = [quick_side(rng, starts=5, start_sd=start_sd, requests=30) for _ in range(120)]
    verdicts = [one(a, b).result for a, b in zip(sides[::2], sides[1::2], strict=True)]
    wrong = sum(result in ("faster", "slower", "mixed") for result in verdicts)
    assert wrong <= 60 * 0.05 + 3 * (60 * 0.05 * 0.95) ** 0.5


def test_one_start_each_gives_a_difference_and_no_verdict():
    rng = np.random.default_rng(1)
    found = one(quick_side(rng, starts=1, start_sd=0.0), quick_side(rng, starts=1, start_sd=0.0, slow=1.5))
    assert found.result == "not enough data"
    assert "study.starts=5" in summary_of(found)
    row = found.rows[0]
    assert row.low < row.effect < row.high < -0.2
    assert row.p is None


def test_a_slowdown_of_five_percent_is_found_with_five_starts():
    rng = np.random.default_rng(2)
    pairs = [
        (
            quick_side(rng, starts=5, start_sd=0.01, requests=30),
            quick_side(rng, starts=5, start_sd=0.01, slow=1.05, requests=30),
        )
        for _ in range(30)
    ]
    found = [one(a, b) for a, b in pairs]
    for metric in ("output_throughput_tok_s", "ttft_ms_p50", "e2e_ms_p50"):
        seen = sum(
            any(row.result == "slower" for row in each.regressions if row.metric.name == metric) for each in found
        )
        assert seen >= 24, metric


def test_starts_known_from_earlier_runs_give_a_single_start_a_verdict():
    rng = np.random.default_rng(3)
    a, b = quick_side(rng, starts=1, start_sd=0.0), quick_side(rng, starts=1, start_sd=0.0, slow=1.2)
    logs = rng.normal(0, 0.01, (150, 1)) + rng.normal(0, 0.005, (150, 4))
    known = Starts(tuple(map(Level, LEVELS)), logs, np.full(4, 0.01))
    found = one(replace(a, earlier={"tpot_ms_p50": known}), replace(b, earlier={"tpot_ms_p50": known}))
    of_tpot = [row for row in found.rows if row.metric.name == "tpot_ms_p50"]
    assert {row.result for row in of_tpot} == {"slower"}
    assert {row.method for row in of_tpot} == {Method(MethodKind.STARTS, (1, 1), 150)}, "both sides share their set-up"
    assert found.result == "slower"
    # one of the two may be a slow start, of which a few earlier ones hardly know
    for count in (3, 8):
        few = {"tpot_ms_p50": replace(known, values=logs[:count])}
        assert one(replace(a, earlier=few), replace(b, earlier=few)).result == "not enough data"


def test_repeats_of_one_start_are_not_starts(side):
    a, b = side("a", seed=1, repeats=5, requests=60), side("b", seed=2, repeats=5, requests=60, slow=1.3)
    assert one(a, b).result == "not enough data"
    assert "one start each" in summary_of(one(a, b))


def test_a_faster_engine_is_faster_and_its_baseline_slower(side):
    fast, slow = side("fast", seed=1, **FIVE), side("slow", seed=2, slow=1.3, **FIVE)
    assert one(slow, fast).result == "faster"
    assert one(fast, slow).result == "slower"
    assert rows(one(fast, slow))["output_throughput_tok_s"].effect == pytest.approx(-0.23, abs=0.04)


def test_starts_with_the_same_requests_are_compared_in_pairs_where_that_is_closer():
    """What their prompts share is the same on both sides."""
    rng = np.random.default_rng(4)
    a, b = (quick_side(rng, starts=5, start_sd=0.005, requests=30) for _ in range(2))
    strangers = replace(
        b, samples=tuple(replace(s, request_ids=tuple("x" + i for i in s.request_ids)) for s in b.samples)
    )
    close, wide = (rows(one(a, other))["ttft_ms_p50"].difference for other in (b, strangers))
    assert close.high - close.low < (wide.high - wide.low) / 2


def test_a_failed_request_is_worse_than_any_latency(side):
    good, failing = side("good", seed=1, **FIVE), side("failing", seed=2, fail_share=0.6, **FIVE)
    found = rows(one(good, failing))
    assert found["failed_share"].result == "slower"
    assert found["failed_share"].effect == pytest.approx(0.6, abs=0.1)
    assert found["ttft_ms_p50"].candidate == np.inf
    assert found["ttft_ms_p50"].result == "not enough data"
    assert [one.kind for one in found["ttft_ms_p50"].reasons] == [ReasonKind.REQUESTS_FAILED]


def test_only_valid_points_compete_and_doubtful_ones_are_shown(side):
    a, b = side("a", seed=1, **FIVE), side("b", seed=2, slow=1.5, **FIVE)
    doubtful = Side(name="b", samples=tuple(warned(s, verdict="doubtful", doubts=("too_short",)) for s in b.samples))
    found = one(a, doubtful)
    assert found.result == "not enough data"
    assert rows(found)["e2e_ms_p50"].result == "slower"
    assert not rows(found)["e2e_ms_p50"].competes
    assert "(too_short)" in summary_of(found)
    assert "--with-doubtful" in summary_of(found)
    assert one(a, doubtful, with_doubtful=True).result == "slower"
    void = Side(name="b", samples=tuple(warned(s, verdict="void", doubts=("level_not_reached",)) for s in b.samples))
    assert one(a, void, with_doubtful=True).result == "not enough data"
    assert "void point: level_not_reached" in summary_of(one(a, void))


def test_with_unequal_settings_that_matter_rows_keep_what_they_found_and_do_not_compete(side):
    a, b = side("a", seed=1, **FIVE), side("b", seed=2, slow=2.0, **FIVE)
    dtype = SettingDifference(key="engine.dtype", baseline="auto", candidate="fp8", matters=True, reason="precision")
    found = one(a, b, (dtype,))
    assert found.result == "unequal_settings"
    assert (found.competing, found.first.competes) == ((), False)
    fair = one(a, b)
    assert [(row.result, row.effect) for row in found.rows] == [(row.result, row.effect) for row in fair.rows]
    assert (found.first.result, verdict_of(found.first)) == (fair.first.result, "(slower)")
    assert "engine.dtype" in summary_of(found)
    assert one(a, b, (replace(dtype, matters=False),)).result == "slower"


def test_too_few_requests_are_not_enough_data(side):
    found = one(side("a", seed=1, requests=8, level=2), side("b", seed=2, requests=8, level=2, slow=1.2))
    assert {r.result for r in found.rows if r.metric.percent is not None} == {"not enough data"}
    assert [(one.kind, one.needed) for one in rows(found)["ttft_ms_p50"].reasons] == [(ReasonKind.FEW_REQUESTS, 12)]


@pytest.mark.parametrize(("short", "compared"), [(1, True), (5, True), (6, False)])
def test_few_requests_in_most_starts_are_not_enough_and_in_some_are_part_of_the_spread(side, short, compared):
    at = {"level": 2, **FIVE}
    a, b = side("a", seed=1, **at), side("b", seed=2, slow=1.5, **at)
    few = side("b", seed=3, slow=1.5, **{**at, "requests": 8, "starts": short}).samples
    few = tuple(warned(one, start_id=f"few {number}", repeat=5 + number) for number, one in enumerate(few))
    row = rows(one(a, replace(b, samples=(*b.samples, *few))))["e2e_ms_p50"]
    assert (ReasonKind.FEW_REQUESTS not in [one.kind for one in row.reasons]) == compared
    assert (row.result == "slower") == compared


@pytest.mark.parametrize(("starts", "found"), [(2, "not enough data"), (4, "slower")])
def test_several_starts_tell_throughputs_apart_however_few_requests_each_has(side, starts, found):
    few = {"starts": starts, "requests": 8, "level": 2}
    a, b = side("a", seed=1, **few), side("b", seed=2, slow=1.5, **few)
    b = replace(b, samples=tuple(warned(one, doubts=("too_few_requests",), verdict="doubtful") for one in b.samples))
    known = rows(one(a, b))
    assert known["output_throughput_tok_s"].result == found
    assert known["ttft_ms_p50"].result == "not enough data"


@pytest.mark.parametrize(("starts", "requests", "kind", "needed"), [
    (1, 8, ReasonKind.FEW_REQUESTS_YET, 2), (2, 8, ReasonKind.FEW_REQUESTS_YET, 1), (2, 3, ReasonKind.FEW_REQUESTS, 12),
    (3, 3, ReasonKind.FEW_REQUESTS, 12),
])  # fmt: skip
def test_how_many_starts_lack_for_a_throughput_of_few_requests(side, starts, requests, kind, needed):
    few = {"starts": starts, "requests": requests, "level": 1}
    row = rows(one(side("a", seed=1, **few), side("b", seed=2, **few)))["output_throughput_tok_s"]
    assert [(reason.kind, reason.needed) for reason in row.reasons] == [(kind, needed)]


def test_few_requests_that_escaped_a_busy_machine_leave_the_throughput(side):
    """Of the others only latencies are lost."""

    def left_out(of):
        rows = (replace(one.row, output_throughput_n=60) for one in of.samples)
        return replace(of, samples=tuple(replace(one, row=row) for one, row in zip(of.samples, rows, strict=True)))

    few = {"requests": 8, "level": 2}
    a, b = side("a", seed=1, **few), side("b", seed=2, slow=1.2, **few)

    def kinds(found):
        return {name: [reason.kind for reason in row.reasons] for name, row in rows(found).items()}

    assert ReasonKind.FEW_REQUESTS_YET in kinds(one(a, b))["output_throughput_tok_s"]
    found = kinds(one(left_out(a), left_out(b)))
    assert not {*TOO_FEW} & {*found["output_throughput_tok_s"]}
    assert ReasonKind.FEW_REQUESTS in found["ttft_ms_p50"]


def test_levels_missing_on_one_side_are_listed(side):
    found = one(side("a", level=4), side("b", level=8))
    reasons = [(one.kind, one.side) for row in found.rows for one in row.reasons]
    assert reasons == [(ReasonKind.LEVEL_MISSING, "candidate"), (ReasonKind.LEVEL_MISSING, "baseline")]


@pytest.mark.slow
def test_all_pairs_share_the_correction(side):
    a, b, c = side("a", seed=1, **FIVE), side("b", seed=2, slow=1.2, **FIVE), side("c", seed=3, **FIVE)
    alone, together = one(a, b), compare([(a, b, ()), (a, c, ())])[0]
    assert rows(alone)["ttft_ms_p50"].p == rows(together)["ttft_ms_p50"].p
    least = [min(row.p_corrected for row in found.rows if row.p is not None) for found in (alone, together)]
    assert least[0] < least[1]


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


@pytest.mark.parametrize(
    ("first", "ttft", "mean", "expected"),
    [
        # the first question has most of the error, and gives it to the other metrics once it is answered
        (0.02, [0.02, 0.01], 0.01, (0.025, [0.025, 0.025])),
        (0.9, [0.004, 0.5], 0.004, (1.0, [0.025, 0.5])),
        # a single level that differs is found, too
        (0.02, [0.001, 0.9], 0.5, (0.025, [0.025, 0.9])),
        (None, [0.01, 0.03], None, (None, [0.02, 0.03])),
        (None, [None], None, (None, [None])),
    ],
)
def test_the_first_question_and_the_metrics_share_the_error(first, ttft, mean, expected):
    ((p_first, rows),) = corrected([AskedPair(first, [("ttft_ms_p50", p) for p in ttft], {"ttft_ms_p50": mean})])
    assert p_first == pytest.approx(expected[0])
    assert list(rows) == pytest.approx(expected[1])


def test_equal_engines_are_rarely_called_different_by_any_of_their_questions():
    """A first question, and four metrics at three levels that share a part of their noise, in 2,000 comparisons."""
    from scipy.special import ndtr

    rng = np.random.default_rng(5)
    names, wrong = ("tok_s", "ttft", "tpot", "e2e"), 0
    for _ in range(2000):
        z = 0.7 * rng.normal() + 0.51**0.5 * rng.normal(size=(4, 3))
        means = z.mean(axis=1) / (0.49 + 0.51 / 3) ** 0.5
        ps, p_means = 2 * ndtr(-np.abs(z)), dict(zip(names, 2 * ndtr(-np.abs(means)), strict=True))
        rows = [(name, p) for name, own in zip(names, ps, strict=True) for p in own]
        ((first, found),) = corrected([AskedPair(p_means["tok_s"], rows, p_means, of_first="tok_s")])
        wrong += min(first, *found) < 0.05
    assert wrong / 2000 <= 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5


def test_the_statistic_lets_failures_be_infinite():
    values = np.random.default_rng(0).lognormal(size=41)
    assert [statistic(values, p) for p in (50, 99)] == pytest.approx(np.percentile(values, [50, 99]).tolist())
    assert statistic(np.array([1.0, 2.0, np.inf]), 50) == 2.0
    assert statistic(np.array([1.0, np.inf, np.inf]), 50) == np.inf


def test_the_interval_of_a_median_holds_the_truth_where_requests_share_their_time():
    """Latencies that wander together: independent requests would give an interval that is far too short."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        noise = rng.normal(0, 0.1, 400)
        wander = np.zeros(400)
        for index in range(1, 400):
            wander[index] = 0.9 * wander[index - 1] + noise[index]
        low, high = log_interval([np.exp(wander + rng.normal(0, 0.1, 400))], 50)
        held += low <= 0 <= high
    assert held >= 178


@pytest.mark.parametrize("percent", [None, 50])
def test_the_interval_over_windows_holds_the_truth_where_the_engine_changes_from_window_to_window(percent):
    rng = np.random.default_rng(8)
    held = 0
    for _ in range(200):
        windows = [np.exp(speed + rng.normal(0, 0.05, 200)) for speed in rng.normal(0, 0.05, 10)]
        low, high = log_interval(windows, percent)
        held += low <= 0 <= high
    assert held >= 178


@pytest.mark.parametrize(
    ("shown", "low", "high"),
    [
        ([(100.0, 80.0, 125.0)], -0.22, 0.22),
        ([(100.0, 80.0, 125.0), (100.0, 80.0, 125.0)], -0.22 / 2**0.5, 0.22 / 2**0.5),
        ([(100.0, 0.0, 101.0)], -6.908, 0.01),
        # a window without an interval of its own: what the requests say
        ([], -0.01, 0.01),
        ([(100.0, 99.99, 100.01)], -0.01, 0.01),
    ],
)
def test_one_window_or_two_are_known_no_better_than_their_points(shown, low, high):
    """Points without an interval say nothing of it."""
    rng = np.random.default_rng(3)
    windows = [100 * np.exp(rng.normal(0, 0.02, 200)) for _ in range(max(1, len(shown)))]
    rows = [PointRow(ttft_ms_p50=one, ttft_ms_p50_low=least, ttft_ms_p50_high=most) for one, least, most in shown]
    found = log_interval(windows, None, reaches_of([*rows, PointRow(ttft_ms_p50=10.0), PointRow()], "ttft_ms_p50"))
    assert np.array(found) - np.log(100) == pytest.approx([low, high], abs=0.01)


def test_windows_of_which_most_requests_failed_have_no_finite_interval():
    """Two thirds failed: the median is infinite, and so are both ends, however many windows there are."""
    failed = np.where(np.arange(200) % 3, np.inf, 1.0)
    for windows in (1, 3):
        assert log_interval([failed] * windows, 50) == (np.inf, np.inf)


def test_a_few_failed_requests_leave_a_median_its_interval():
    some = np.where(np.arange(200) % 10, 1 + np.arange(200) / 1000, np.inf)
    low, high = log_interval([some] * 3, 50)
    assert 0 < low < np.log(statistic(some, 50)) < high < 0.2


def test_no_verdict_contradicts_its_interval():
    """Small differences over few starts: what an interval leaves out 0 of is never called equal, nor undecided without a word."""
    rng = np.random.default_rng(11)
    sides = [quick_side(rng, starts=3, start_sd=0.02, slow=slow, requests=24) for slow in (1.0, 1.05, 1.02, 1.08)]
    seen: set[str] = set()
    for found in compare([(a, b, ()) for a, b in combinations(sides, 2)], margin=0.05):
        tested = [row for row in found.rows if row.low is not None]
        if found.result == "no difference":
            assert not [row for row in tested if row.result == "not enough data"]
        for row in tested:
            zero = row.low <= 0 <= row.high
            word = verdict_of(row)
            assert (word == "open") == (row.result == "not enough data")
            assert row.may_be_chance == (word == "open" and not zero)
            seen.add(word.partition(" ≤")[0])
    assert {"open", "differ by"} <= seen
