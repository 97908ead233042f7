"""How many starts a gate foresees, by starts that are known."""

import numpy as np
import pytest

from servebench.analysis.start_model import Starts
from servebench.analysis.verdict.gate import GateQuestion
from servebench.analysis.verdict.looks import another_start_pays, starts_to_pass
from servebench.contracts.level import Level

NAMES = ("output_throughput_tok_s", "tpot_ms_p50", "e2e_ms_p50")
LEVELS = (Level(1), Level(4))


def known(spread, count=12, *, in_turns=True, names=NAMES):
    """Starts, or their differences, that differ by `spread`, and points that are known to half a percent."""
    rng = np.random.default_rng(5)
    effects = rng.normal(0, spread * (2**0.5 if in_turns else 1), count)
    values = effects[:, None] + rng.normal(0, 0.005, (count, 2))
    return {name: [Starts(LEVELS, values, np.array([0.005, 0.005]), differences=in_turns)] for name in names}


@pytest.mark.parametrize("in_turns", [True, False])
def test_starts_that_differ_more_and_a_narrower_limit_take_more(in_turns):
    needed = [starts_to_pass(known(spread, in_turns=in_turns), GateQuestion(0.05)) for spread in (0.005, 0.01, 0.02)]
    assert None not in needed
    assert needed == sorted(needed)
    assert needed[0] < needed[2]
    assert starts_to_pass(known(0.01, in_turns=in_turns), GateQuestion(0.1)) < needed[2]


def test_what_no_look_shows_is_not_foreseen():
    assert starts_to_pass(known(0.05), GateQuestion(0.01)) is None
    assert starts_to_pass({}, GateQuestion(0.05)) is None


def test_ttft_takes_six_starts():
    question = GateQuestion(0.05, ("ttft_ms_p50",))
    assert starts_to_pass(known(0.001, names=("ttft_ms_p50",)), question) == 6


@pytest.mark.parametrize(
    ("cold_s", "load_s", "spread", "pays"),
    [
        (60, 60, None, True),
        (300, 60, None, False),
        (300, 60, 0.02, True),
        (300, 60, 0.001, False),
        (60, 3000, 0.002, True),
    ],
)
def test_a_start_of_minutes_pays_where_starts_differ_more_than_points_are_unsure(cold_s, load_s, spread, pays):
    """Points are known to half a percent; before anything is known half of that variance is taken to be between starts."""
    groups = () if spread is None else known(spread, in_turns=False)[NAMES[0]]
    assert another_start_pays(cold_s, load_s, groups) is pays
