"""The line on how an engine wanders."""

from __future__ import annotations

import pytest

from servebench.analysis.serial import FLAT
from servebench.contracts.noise import AGE_MAX_S, FLAT_PRIOR, LONG_S, LearnedNoise
from servebench.report.wording.noise import long_point_helps, noise_line, prior_line
from servebench.store.studies import load_study
from support.studies import SimulatedEngine, SimulatedLoad, with_columns

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


@pytest.fixture
def run(make_study):
    study = load_study(make_study((SimulatedEngine(name="a"), SimulatedLoad(config={"launch.name": "process"}))))
    return with_columns(study.runs[0], interval_prior=FLAT_PRIOR)


def known_of(run, **facts):
    same = {name: run.fact(name) for name in ("engine", "engine_version", "launch", "gpu")}
    return [(NOISE, {**same, "machine": {}, **facts})]


def test_a_long_point_is_proposed_only_where_it_would_help(run, make_study):
    def helps(one, known=(), now_s=1e9):
        helped = long_point_helps(one, known, now_s)
        assert (prior_line(one, known, now_s) is not None) is helped
        return helped

    assert helps(run)
    assert helps(run, known_of(run, engine_version="other"))
    assert helps(run, known_of(run), 1e9 + AGE_MAX_S + 1)
    assert not helps(run, known_of(run)), "a long point was measured since"
    for columns in ({"rate": 2.0}, {"window_s": LONG_S}, {"interval_prior": None}):
        assert not helps(with_columns(run, **columns)), columns
    imitated = SimulatedLoad(config={"launch.name": "simulated"})
    (run,) = load_study(make_study((SimulatedEngine(), imitated), name="imitated")).runs
    assert not helps(with_columns(run, interval_prior=FLAT_PRIOR))


def test_a_learned_prior_names_its_long_point(run):
    known = with_columns(run, interval_prior="s/r/c8-r0")
    assert "s/r/c8-r0" in prior_line(known, [], 1e9)
    assert not long_point_helps(known, [], 1e9)
