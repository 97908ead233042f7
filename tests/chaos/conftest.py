"""`make chaos`: faults at random moments. `--rounds` says how many kills, `--seed` at which moments."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--rounds", type=int, default=20, help="how many times a study is killed")
    parser.addoption("--runs", type=int, default=30, help="how many runs a study has, a multiple of 3")
    parser.addoption("--pace", type=float, default=12.0, help="the longest time between two kills, in seconds")
    parser.addoption("--course", default="study,resume,tune,quality,sync", help="which commands are killed")
    parser.addoption("--seed", type=int, default=1, help="which moments")


def _option(name):
    return pytest.fixture(lambda request: request.config.getoption(f"--{name}"))


rounds, pace_s, runs, seed = map(_option, ("rounds", "pace", "runs", "seed"))
