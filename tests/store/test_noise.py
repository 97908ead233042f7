"""What long points have shown, on disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servebench.contracts.noise import AGE_MAX_S, LearnedNoise
from servebench.store.noise import all_noise, read_noise, write_noise

FACTS = {"engine": "vllm", "load": "closed", "machine": {"platform": "Linux"}}
NOISE = LearnedNoise(point="s/r/c8-r0", ended_s=1e9, window_s=300.0, likelihood=[[0.0, 1.0], [0.5, 0.25]])


def test_what_is_written_is_read_again_for_the_same_facts_only(tmp_path):
    assert read_noise(tmp_path, FACTS, 1e9) is None
    assert list(all_noise(tmp_path)) == []
    write_noise(tmp_path, FACTS, NOISE)
    assert read_noise(tmp_path, FACTS, 1e9) == NOISE
    assert read_noise(tmp_path, {**FACTS, "engine": "sglang"}, 1e9) is None
    write_noise(tmp_path, FACTS, newer := replace(NOISE, point="t/r/c8-r0"))
    assert list(all_noise(tmp_path)) == [(newer, FACTS)]


@pytest.mark.parametrize(("later_s", "known"), [(0, True), (AGE_MAX_S, True), (AGE_MAX_S + 1, False), (-1, False)])
def test_it_ages(tmp_path, later_s, known):
    write_noise(tmp_path, FACTS, NOISE)
    assert (read_noise(tmp_path, FACTS, 1e9 + later_s) is not None) is known


@pytest.mark.parametrize("text", ["", "{", "[]", '{"noise": 1, "facts": {}}', '{"noise": {"point": 1}, "facts": {}}'])
def test_what_cannot_be_read_says_nothing(tmp_path, text):
    write_noise(tmp_path, FACTS, NOISE)
    (path,) = (tmp_path / ".noise").iterdir()
    path.write_text(text)
    assert read_noise(tmp_path, FACTS, 1e9) is None
    assert list(all_noise(tmp_path)) == []
