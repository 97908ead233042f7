"""What `--preview` shows."""

from __future__ import annotations

import pytest

from servebench.errors import ConfigError, PreflightError
from servebench.preview import preview
from servebench.registry import build
from servebench.report.preview import bins

WORKLOADS = (
    "agent_loop", "long_context", "mix", "multi_turn", "rag_prefix", "sharegpt", "structured_json", "summarization",
    "trace", "unique",
)  # fmt: skip
ATTACHED = ("engine=openai", "launch=attach", "launch.base_url=http://127.0.0.1:9/v1")


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_can_be_seen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Examples, both histograms, the hit rate, who counted; nothing is contacted."""
    short = ["workload.input_tokens=2000"] if name == "long_context" else []
    assert preview([*ATTACHED, f"workload={name}", "load.requests=12", *short], build([], set())) == 0
    shown = capsys.readouterr().out
    for said in (
        f"{name} for",
        "12 requests",
        "approximate",
        "-00000",
        "input tokens",
        "output tokens",
        "ideal prefix-cache",
    ):
        assert said in shown
    assert "█" in shown


def test_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep over something else shows a workload once, one over a workload's key each."""
    registry = build([], set())
    preview(
        [*ATTACHED, "-m", "workload=unique", "load.requests=3", "load.timeout_s=1,2", "workload.seed=1,2"], registry
    )
    assert capsys.readouterr().out.count("unique for") == 2


def test_adapters_and_sessions_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """How many sessions, and how often each adapter."""
    words = ["workload=multi_turn", "load.requests=12", "workload.adapters=[x]"]
    preview([*ATTACHED, *words], build([], set()))
    shown = capsys.readouterr().out
    assert "sessions: 3, of 4 to 4 requests" in shown
    assert "adapters: x 12" in shown


def test_mistakes() -> None:
    """A key that does not exist, and a workload that is impossible, are errors here, too."""
    with pytest.raises(ConfigError):
        preview([*ATTACHED, "workload.sed=1"], build([], set()))
    with pytest.raises(PreflightError, match="no such file"):
        preview([*ATTACHED, "workload=trace", "workload.path=no.csv"], build([], set()))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([5, 5, 5], [(5, 5, 3)]),
        ([1, 2, 3], [(1, 1, 1), (2, 2, 1), (3, 3, 1)]),
        (list(range(100)), [(10 * n, 10 * n + 9, 10) for n in range(10)]),
        ([0, 104], [(0, 10, 1), *((11 * n, 11 * n + 10, 0) for n in range(1, 9)), (99, 104, 1)]),
    ],
)
def test_bins(lengths: list[int], expected: list[tuple[int, int, int]]) -> None:
    """Equal ranges that hold every length once."""
    assert bins(lengths) == expected
