"""Answers of the recommendation rules for stored runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from servebench.analysis.fairness import SettingDifference, differences
from servebench.analysis.recommend import Entrant, Recommendation, Rules
from servebench.analysis.stored_runs import (
    entrant_of,
    quality_agreements,
)
from servebench.contracts.stored import RunData


def advise(
    runs: Sequence[RunData], rules: Rules, *, with_doubtful: bool = False, varying: str | None = None
) -> list[Recommendation]:
    """The answers of the rules for these runs."""
    from servebench.analysis.recommend import recommend as judge

    by_name = {run.run_id: run for run in runs}

    def unfair(a: Entrant, b: Entrant, across: Sequence[str]) -> Sequence[SettingDifference]:
        more = [f"{group}.*" for group in across] + (["machine.*"] if "gpu" in across else [])
        told = ",".join([*more, *([varying] if varying else [])])
        return differences(by_name[a.name], by_name[b.name], told)

    answers = judge([entrant_of(run) for run in runs], rules, unfair=unfair, with_doubtful=with_doubtful)
    return [replace(one, quality=_rightness(one, by_name)) for one in answers]


def _rightness(answer: Recommendation, runs: Mapping[str, RunData]) -> tuple[str, ...]:
    """Which of the ranked runs are less right than the first, or more, where that is no chance."""
    found = []
    if answer.ranking:
        first = answer.ranking[0].entrant.name
        for score in answer.ranking[1:]:
            other = score.entrant.name
            for one in quality_agreements(runs[other], runs[first]):
                if one.second_is_worse:
                    found.append(f"{first} is less right than {other}: {one.turned().sentence}")
                elif one.turned().second_is_worse:
                    found.append(f"{other} is less right than {first}: {one.sentence}")
    return tuple(found)
