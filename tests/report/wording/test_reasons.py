"""Each value that a conclusion may have has its words, and each way to test a difference gives one of the same type."""

import pytest

from servebench.analysis.answer.model import CaveatKind, OtherDifference, Purpose, WorkloadAnswer
from servebench.analysis.recommendation.model import UseReason, UseReasonKind
from servebench.analysis.start_model import Starts
from servebench.analysis.tuning.answer import ChangeKind
from servebench.analysis.verdict.blocks import MeasuredBlock, estimate
from servebench.analysis.verdict.model import Difference, VerdictKind
from servebench.analysis.verdict.reasons import Method, MethodKind, ReasonKind
from servebench.analysis.verdict.starts import evidence_of
from servebench.contracts.level import Level
from servebench.report.wording import answer, comparison, recommendation, tuning

ONE, TWO = (Starts.of_one_level([value], 0.01) for value in (0.0, 0.105))
BLOCKS = [
    MeasuredBlock(name, f"{name}{i}", 0, value + i / 100) for name, value in (("a", 0.0), ("b", 0.1)) for i in (0, 1)
]


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (ReasonKind, comparison.REASONS),
        (UseReasonKind, recommendation.REASONS),
        (CaveatKind, answer.CAVEATS),
        (Purpose, answer.PURPOSES),
        (ChangeKind, tuning.CHANGES),
    ],
)
def test_every_kind_has_its_words(kinds, words):
    assert set(words) == set(kinds)


@pytest.mark.parametrize("kind", MethodKind)
def test_every_method_has_its_words(kind):
    assert comparison.method_text(Method(kind, (2, 3)))


@pytest.mark.parametrize("kind", [MethodKind.STARTS, MethodKind.LOOKS])
def test_starts_that_took_turns_have_words_of_their_own(kind):
    plain, sliced = (comparison.method_text(Method(kind, (2, 2), 4, slice_by_slice=one)) for one in (False, True))
    assert plain != sliced


@pytest.mark.parametrize("kind", UseReasonKind)
def test_every_reason_of_a_use_is_one_line(kind):
    reason = UseReason(kind=kind, levels=(Level(4),), names=("x",))
    assert recommendation.reason_text(reason)
    assert "\n" not in recommendation.reason_text(reason)


@pytest.mark.parametrize(
    "found",
    [
        evidence_of(ONE, TWO, "output_throughput_tok_s").difference(0.95),
        evidence_of(ONE, TWO, "ttft_ms_p50", [Starts.of_one_level([0.0, 0.01, 0.02], 0.01)]).difference(0.95),
        estimate(BLOCKS).change("b", "a"),
    ],
)
def test_every_way_to_test_gives_a_difference_with_its_interval(found):
    assert isinstance(found, Difference)
    assert found.low < found.effect < found.high
    assert found.effect == pytest.approx(0.11, abs=0.01)


@pytest.mark.parametrize(
    ("effect", "result", "word"), [(-0.1, VerdictKind.FASTER, "better"), (0.1, VerdictKind.SLOWER, "worse")]
)
def test_a_change_of_failed_requests_is_in_points_and_better_where_fewer_fail(effect, result, word):
    method = Method(MethodKind.FAILED_SHARES, (2, 2))
    row = comparison.ComparisonRow(
        level=Level(4), metric=comparison.FAILED, baseline=0.2, candidate=0.2 + effect, result=result,
        difference=Difference(effect=effect, low=effect - 0.05, high=effect + 0.05, method=method),
    )  # fmt: skip
    assert comparison.change_of(row) == f"{100 * effect:+.1f} points [{100 * effect - 5:+.1f}, {100 * effect + 5:+.1f}]"
    other = OtherDifference(baseline="a", candidate="b", row=row)
    said = answer.sentence_of(WorkloadAnswer(workload="w", facts=(), levels=(), columns=(), leads=(), others=(other,)))
    assert said.startswith(f"b is {word} than a")


def test_what_falls_to_nothing_has_no_change_the_other_way():
    row = comparison.ComparisonRow(
        level=Level(4), metric=comparison.FAILED, baseline=1.0, candidate=0.0,
        difference=Difference(effect=-1.0, low=-1.0, high=-0.9, method=Method(MethodKind.STARTS)),
    )  # fmt: skip
    assert row.turned().difference is None
