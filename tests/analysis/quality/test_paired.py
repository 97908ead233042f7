from __future__ import annotations

import pytest

from servebench.analysis.quality.paired import compare_answers, mcnemar, questions_needed
from servebench.report.wording.comparison import paired_text


@pytest.mark.parametrize(
    ("b", "c", "p"), [(0, 0, 1.0), (3, 0, 0.25), (0, 6, 0.03125), (5, 5, 1.0), (1, 9, 0.021484375)]
)
def test_mcnemar_is_exact_and_symmetric(b, c, p):
    assert mcnemar(b, c) == pytest.approx(p)
    assert mcnemar(c, b) == pytest.approx(p)


def test_questions_needed_falls_with_the_difference():
    assert questions_needed(0.2, 0.05) > questions_needed(0.2, 0.1) > questions_needed(0.2, 0.2)
    with pytest.raises(ValueError, match="difference"):
        questions_needed(0.2, 0.0)


def _answers(pattern: str) -> dict[str, bool]:
    return {str(i): mark == "x" for i, mark in enumerate(pattern)}


@pytest.mark.parametrize(
    ("first", "second"), [("xxxx....", "xxxxxxx."), ("....xxxx", "xxxxxxx.")], ids=["nested", "overlapping"]
)
def test_eight_questions_cannot_tell_half_from_seven_eighths(first, second):
    found = compare_answers(_answers(first), _answers(second))
    assert (found.first_share, found.second_share) == (0.5, 0.875)
    assert found.finding == "too small to tell"
    assert found.n_needed is not None
    assert found.n_needed > 8
    assert str(found.n_needed) in paired_text(found)


@pytest.mark.parametrize(
    ("first", "second", "finding"),
    [
        ("x" * 100 + "." * 100, "x" * 120 + "." * 80, "different"),
        ("x" * 1000, "x" * 1000, "not different"),
        ("x" * 8, "x" * 8, "too small to tell"),
        ("", "", "too small to tell"),
    ],
)
def test_findings(first, second, finding):
    found = compare_answers(_answers(first), _answers(second))
    assert found.finding == finding
    assert paired_text(found).startswith(finding)


def test_only_shared_questions_count():
    found = compare_answers({"a": True, "b": False}, {"b": False, "c": True})
    assert (found.n, found.first_share, found.second_share) == (1, 0.0, 0.0)
