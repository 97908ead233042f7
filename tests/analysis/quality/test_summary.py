from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from servebench.analysis.quality.agreement import agreements
from servebench.analysis.quality.summary import summaries
from servebench.analysis.warnings.catalog import CATALOG
from servebench.report.wording.comparison import agreement_text
from servebench.util.proportions import wilson
from support.records import quality_records


@pytest.mark.slow
def test_a_summary_counts_right_wrong_and_unanswered():
    """Failed requests count neither as right nor as wrong, and are told."""
    (one,) = summaries(pd.DataFrame(quality_records("mmlu", [True] * 6 + [False] * 2 + [None] * 2)))
    assert (one.n, one.right, one.unanswered, one.accuracy) == (8, 6, 2, 0.75)
    assert (one.low, one.high) == wilson(6, 8)
    assert {doubt.code for doubt in one.doubts} == {"sample_too_small", "unanswered"}
    # ten spans of half a second with pauses between them
    assert one.seconds == pytest.approx(5.0)
    assert one.right_per_s == pytest.approx(6 / 5.0)


def test_four_hundred_questions_are_enough_and_unread_answers_are_warned_of():
    (one,) = summaries(pd.DataFrame(quality_records("mmlu", [True, False] * 200)))
    assert one.doubts == ()
    unread = [replace(row, extracted=None, finish_reason="length") for row in quality_records("mmlu", [False] * 400)]
    (one,) = summaries(pd.DataFrame(unread))
    assert [doubt.code for doubt in one.doubts] == ["unread_answers"]
    assert "400 of 400" in one.doubts[0].message


def test_scores_without_right_and_wrong_have_a_mean():
    rows = [
        replace(row, correct=None, score=place / 100)
        for place, row in enumerate(quality_records("rouge", [True] * 100))
    ]
    (one,) = summaries(pd.DataFrame(rows))
    assert (one.accuracy, one.right_per_s, one.unanswered, one.n) == (None, None, 0, 100)
    assert one.value == pytest.approx(0.495)
    assert one.low < 0.495 < one.high


def test_the_measure_says_what_the_share_means():
    """Parity is no answer that somebody waits for, so that there are none of it a second."""
    found = summaries(
        pd.DataFrame(
            [
                *quality_records("mmlu", [True]),
                *quality_records("parity", [True]),
                *quality_records("json.constrained", [True]),
            ]
        )
    )
    assert [(one.measure, one.right_per_s is None) for one in found] == [
        ("right", False),
        ("the same alone and under load", True),
        ("that match their schema", False),
    ]
    (one,) = summaries(pd.DataFrame([replace(row, correct=None, score=1.0) for row in quality_records("mmlu", [True])]))
    assert one.measure == "mean score"


@pytest.mark.parametrize(("right", "told"), [(100, ["as_by_chance"]), (90, ["as_by_chance"]), (160, []), (40, [])])
def test_what_guessing_gets_is_marked(right, told):
    """Less than guessing is no guess either."""
    rows = quality_records("mmlu", [True] * right + [False] * (400 - right))
    (one,) = summaries(pd.DataFrame([replace(row, detail='{"chance": 0.25}') for row in rows]))
    assert [doubt.code for doubt in one.doubts] == told
    assert all("25% right" in doubt.message for doubt in one.doubts)
    assert one.details == {}


@pytest.mark.parametrize(
    ("benchmark", "correct", "max_tokens", "told"),
    [("gsm8k", False, 256, ["cut_off"]), ("gsm8k", True, 256, []), ("mmlu", False, 8, []), ("parity", False, 256, [])],
)
def test_wrong_answers_that_were_cut_off_are_warned_of(benchmark, correct, max_tokens, told):
    """A letter stands at the beginning of its answer; parity bounds both alike."""
    rows = quality_records(benchmark, [correct] * 50 + [False] * 350)
    cut = [replace(row, finish_reason="length", max_tokens=max_tokens) for row in rows[:50]]
    (one,) = summaries(pd.DataFrame(cut + rows[50:]))
    assert [doubt.code for doubt in one.doubts] == told
    assert all("50 of 400" in d.message and f"{max_tokens} tokens" in d.message for d in one.doubts)


def test_two_runs_no_better_than_guessing_are_marked():
    """Not where one of them knows more."""

    def run(right):
        rows = quality_records("mmlu", [True] * right + [False] * (400 - right))
        return pd.DataFrame([replace(row, detail='{"chance": 0.25}') for row in rows])

    (both,) = agreements(run(100), run(95))
    assert both.chance == both.swapped().chance == 0.25
    assert "25%" in agreement_text(both).rpartition(";")[2]
    (one,) = agreements(run(100), run(200))
    assert one.chance is None


def test_every_warning_is_in_the_catalog():
    rows = [replace(row, correct=None, score=None, note="x") for row in quality_records("judge", [True])]
    rows += [replace(rows[0], item_id="other", note="y")]
    assert "x (the first of 2 reasons)" in next(
        doubt.message for doubt in summaries(pd.DataFrame(rows))[0].doubts if doubt.code == "not_judged"
    )
    rows += [replace(row, extracted=None) for row in quality_records("mmlu", [False, None])]
    told = {doubt.code for one in summaries(pd.DataFrame(rows)) for doubt in one.doubts}
    assert told == {"not_judged", "unread_answers", "unanswered", "sample_too_small"}
    assert told | {"as_by_chance", "cut_off"} <= set(CATALOG)


@pytest.mark.parametrize(
    ("scores", "low", "high"),
    [
        ([0.0] * 4, 0.0, 0.75),  # rule of three
        ([0.75] * 60, 0.75 * 0.95, 0.75 + 0.25 * 0.05),
        ([0.2, 0.4], 0.0, 1.0),  # t of one degree of freedom: 12.7 x 0.1 to either side
        ([0.0, 0.5, 1.0], 0.0, 1.0),
        ([0.2, 0.3, 0.4, 0.5], 0.14457, 0.55543),
    ],
)
def test_the_interval_of_few_scores_is_wide(scores, low, high):
    """Also where they are all the same: four are no sample."""
    rows = [
        replace(row, correct=None, score=one)
        for row, one in zip(quality_records("judge", [True] * len(scores)), scores, strict=True)
    ]
    (one,) = summaries(pd.DataFrame(rows))
    assert (one.low, one.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert ("sample_too_small" in {doubt.code for doubt in one.doubts}) == (high - low > 0.1)


def test_levels_and_points_are_apart():
    rows = [row for level in (1, 8) for row in quality_records("mmlu", [True] * 4, concurrency=level)]
    rows += quality_records("json", [True] * 3, concurrency=None, rate=2.5, point="r2.5-r0")
    found = summaries(pd.DataFrame(rows))
    assert [(one.benchmark, one.at, one.point) for one in found] == [
        ("mmlu", "concurrency 1", None),
        ("mmlu", "concurrency 8", None),
        ("json", "rate 2.5/s", "r2.5-r0"),
    ]
    assert summaries(pd.DataFrame()) == []


def pair(first, second, **changes):
    (one,) = agreements(
        pd.DataFrame(quality_records("mmlu", first)), pd.DataFrame(quality_records("mmlu", second, **changes))
    )
    return one


def test_runs_are_compared_question_by_question():
    one = pair([True] * 40, [True] * 10 + [False] * 30)
    assert (one.finding, one.second_is_worse, one.lost) == ("different", True, 0.75)
    assert "100.0% vs 25.0% on 40 questions" in agreement_text(one)
    assert "25.0% vs 100.0%" in agreement_text(one.swapped())
    assert not one.swapped().second_is_worse
    few = pair([True] * 4 + [False] * 4, [True] * 7 + [False])
    assert (few.finding, few.lost) == ("too small to tell", 0.0)
    assert few.comparison.n_needed > 8
    same = pair([True, False] * 300, [True, False] * 300)
    assert same.finding == "not different"


def test_what_cannot_be_compared_says_why():
    assert "m and by other" in agreement_text(pair([True], [True], method="other"))
    assert "quality.seed" in agreement_text(pair([True], [True], item_digest="e"))
    assert pair([True] * 3, [True] * 3, concurrency=4).at == "concurrency 8 vs concurrency 4"
    assert agreements(pd.DataFrame(), pd.DataFrame(quality_records("mmlu", [True]))) == []


def test_several_comparisons_share_the_risk():
    """p = 0.031 is a difference alone, and none beside another comparison."""
    first, second = [True] * 6 + [False] * 4, [False] * 10
    assert pair(first, second).finding == "different"
    both = [
        pd.DataFrame(quality_records("mmlu", kind) + quality_records("gsm8k", [True] * 10)) for kind in (first, second)
    ]
    assert agreements(*both)[0].finding == "too small to tell"


def test_scores_are_compared_by_pairs():
    def scored(values):
        rows = quality_records("rouge", [True] * len(values))
        return pd.DataFrame([replace(r, correct=None, score=v) for r, v in zip(rows, values, strict=True)])

    low, high = [0.3 + 0.01 * (i % 10) for i in range(60)], [0.5 + 0.01 * (i % 9) for i in range(60)]
    (one,) = agreements(scored(high), scored(low))
    assert (one.finding, one.second_is_worse) == ("different", True)
    (few,) = agreements(scored(high[:5]), scored(low[:5]))
    assert few.finding == "too small to tell"
