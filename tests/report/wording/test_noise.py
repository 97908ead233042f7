"""The line on how an engine wanders."""

from __future__ import annotations

import pytest

from servebench.analysis.serial import FLAT
from servebench.contracts.noise import AGE_MAX_S, LearnedNoise
from servebench.report.wording.noise import noise_line

NOISE = LearnedNoise(point="s/r/c8-r0", ended_s=1e9, window_s=300.0, likelihood=(FLAT > 0).astype(float).tolist())


@pytest.mark.parametrize(
    ("later_s", "said"), [(0, "of today"), (3 * 86_400, "3 days old"), (AGE_MAX_S + 1, "too old to be used")]
)
def test_it_says_how_old_it_is(later_s, said):
    assert said in noise_line(NOISE, {"engine": "vllm"}, 1e9 + later_s)


def test_what_a_server_says_of_itself_does_not_act_on_the_terminal():
    line = noise_line(NOISE, {"engine": "vllm", "engine_version": "1\x1b[2J\nforged", "gpu": "h100"}, 1e9)
    assert "\x1b" not in line
    assert "\n" not in line
