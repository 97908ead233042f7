"""What a gate judges of a comparison: within the limit, lost, undecided, or not judged."""

from dataclasses import replace

import pytest

from servebench.analysis.verdict.gate import GateQuestion, check_metrics, evaluate_gate, judge_pair
from servebench.analysis.verdict.model import (
    EQUAL,
    FAILED,
    METRICS,
    NOT_COMPARED,
    NOT_WORSE,
    OPEN,
    SLOWER,
    Comparison,
    ComparisonRow,
    Difference,
    StartValues,
)
from servebench.analysis.verdict.reasons import Method, MethodKind, Reason, ReasonKind
from servebench.analysis.verdict.slices import SliceDifference
from servebench.contracts.level import Level
from servebench.util.errors import ConfigError

TOK_S, TTFT, TTFT_P99, TPOT, E2E = METRICS
STARTS = StartValues(baseline=(), candidate=())
FEW = Reason(ReasonKind.FEW_REQUESTS, count=90, needed=368)


def row(metric, loss, half=0.01, verdict=OPEN, **more):
    """A tested row whose candidate is worse by `loss`, known to `half`."""
    effect = -loss if metric.higher_is_better else loss
    difference = Difference(effect=effect, low=effect - half, high=effect + half, method=Method(MethodKind.STARTS))
    facts = {"p_corrected": 0.5, "starts": STARTS, "difference": difference, "result": verdict} | more
    return ComparisonRow(level=Level(4), metric=metric, baseline=1.0, candidate=1.0, **facts)


def without_test(metric, *reasons):
    return ComparisonRow(level=Level(4), metric=metric, baseline=None, candidate=None, reasons=reasons)


def judged(*rows, metrics=None, limit=0.05):
    found = judge_pair(Comparison(baseline="a", candidate="b", rows=rows, margin=limit), GateQuestion(limit, metrics))
    names = [
        [None if one is None else one.metric for one in own]
        for own in (found.losses, found.undecided, found.not_judged)
    ]
    return found.verdict, *names


FINE = (row(TOK_S, 0.0), row(TPOT, 0.0), row(E2E, 0.0))


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ((), (NOT_WORSE, [], [], [])),
        # worse by less than the limit, or better without an end
        ((row(TOK_S, 0.03),), (NOT_WORSE, [], [], [])),
        ((row(E2E, -0.5, 0.4),), (NOT_WORSE, [], [], [])),
        ((row(TPOT, 0.045),), (OPEN, [], [TPOT], [])),
        ((row(FAILED, 0.045),), (OPEN, [], [FAILED], [])),
        ((row(TPOT, 0.08, verdict=SLOWER),), (SLOWER, [TPOT], [], [])),
        ((row(TPOT, 0.04, 0.005, verdict=SLOWER),), (NOT_WORSE, [], [], [])),
        # nobody asked for TTFT: it fails the gate where it is worse, and is left out where that is not known
        ((row(TTFT, 0.3, verdict=SLOWER),), (SLOWER, [TTFT], [], [])),
        ((row(TTFT, 0.0, 0.2),), (NOT_WORSE, [], [], [TTFT])),
        ((without_test(TTFT_P99, FEW),), (NOT_WORSE, [], [], [TTFT_P99])),
        ((without_test(TPOT, FEW),), (NOT_WORSE, [], [], [TPOT])),
        ((row(E2E, 0.0, competes=False),), (NOT_WORSE, [], [], [E2E])),
        # the throughput of a level has to be judged
        ((row(TOK_S, 0.0, competes=False),), (OPEN, [], [TOK_S], [])),
        ((without_test(TOK_S, FEW),), (NOT_COMPARED, [], [TOK_S], [])),
        ((row(TOK_S, 0.0, level_missing=True, competes=False, starts=None),), (NOT_COMPARED, [], [TOK_S], [])),
    ],
)  # fmt: skip
def test_what_nobody_named_does_not_block_and_is_reported(more, found):
    assert judged(*FINE, *more) == found


@pytest.mark.parametrize(("half", "found"), [(0.02, (OPEN, [], [TPOT], [])), (0.04, (NOT_WORSE, [], [], [TPOT]))])
def test_a_latency_of_single_slices_is_judged_where_the_mean_of_its_starts_is_known(half, found):
    """Of four starts, so a single one by twice the half."""
    starts = replace(STARTS, error=(0.3, 0.3), slice_differences=(SliceDifference(0.0, 0.0, 0.0, 0),) * 4)
    assert judged(row(TOK_S, 0.0), row(TPOT, 0.04, half, starts=starts)) == found


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ((row(E2E, 0.0),), (NOT_WORSE, [], [], [])),
        ((row(E2E, 0.0, 0.2),), (OPEN, [], [E2E], [])),
        ((row(FAILED, 0.0), row(E2E, 0.0, 0.2)), (OPEN, [], [E2E], [])),
        ((row(E2E, 0.3, verdict=SLOWER),), (SLOWER, [E2E], [], [])),
    ],
)
def test_without_a_throughput_nothing_passes_unknown(rows, found):
    """Embeddings and rankings generate nothing; such a gate passed with no row within the limit."""
    assert judged(*rows) == found


@pytest.mark.parametrize(
    ("metric", "rows", "found"),
    [
        (TTFT, FINE, (NOT_COMPARED, [], [TTFT], [])),
        (TTFT, (*FINE, row(TTFT, 0.0)), (NOT_WORSE, [], [], [])),
        (TTFT, (*FINE, row(TTFT, 0.0, 0.2)), (OPEN, [], [TTFT], [])),
        (TTFT, (*FINE, row(TTFT, 0.0, reasons=(Reason(ReasonKind.STARTS_OF_TTFT, needed=6),))), (OPEN, [], [TTFT], [])),
        (TTFT_P99, (*FINE, without_test(TTFT_P99, FEW)), (NOT_COMPARED, [], [TTFT_P99], [])),
        (FAILED, FINE, (NOT_WORSE, [], [], [])),
        # the others do not count
        (TTFT, (row(TOK_S, 0.5, verdict=SLOWER), row(TTFT, 0.0)), (NOT_WORSE, [], [], [])),
    ],
)
def test_what_is_named_has_to_be_judged(metric, rows, found):
    assert judged(*rows, metrics=(metric.name,)) == found


@pytest.mark.parametrize("rows", [(), (without_test(TOK_S),), (row(TOK_S, 0.0, p_corrected=None),)])
def test_a_comparison_without_a_test_cannot_be_judged(rows):
    assert judged(*rows)[2] == [None]
    gate = evaluate_gate([Comparison(baseline="a", candidate="b", rows=rows, margin=0.05)], GateQuestion(0.05))
    assert (gate.failed, [row for _, row in gate.undecided]) == (False, [None])


def test_unequal_settings_are_not_judged():
    comparison = Comparison(baseline="a", candidate="b", rows=FINE, margin=0.05, result="unequal_settings")
    assert judge_pair(comparison, GateQuestion(0.05)).undecided == (None,)


def test_an_unknown_metric_is_an_error_with_the_choices():
    assert check_metrics("--metric", ["ttft_ms_p99", " tpot_ms_p50", "ttft_ms_p99"]) == ("ttft_ms_p99", "tpot_ms_p50")
    with pytest.raises(ConfigError, match=r"--metric: 'ttft_p99'.*ttft_ms_p99") as found:
        check_metrics("--metric", ["ttft_p99"])
    assert "\n" not in str(found.value)


def test_equal_rows_pass():
    assert judged(row(TOK_S, 0.0, verdict=EQUAL), row(TPOT, 0.01, verdict=EQUAL))[0] is NOT_WORSE
