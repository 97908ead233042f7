"""What limits an engine at each load level, with the evidence, and which setting to try."""

from collections.abc import Sequence
from contextlib import suppress

from servebench.analysis.limits.decide import find_limit
from servebench.analysis.limits.facts import level_facts
from servebench.analysis.limits.model import LimitFinding, LimitSummary
from servebench.analysis.limits.proposals import engine_knobs_of, starts_engine, with_proposals
from servebench.contracts.labels import run_labels
from servebench.contracts.limits import Limit
from servebench.contracts.stored import RunData
from servebench.util.errors import StoreError

RUNS_MAX = 6
"""Findings need all requests of a run: of more runs with points a page has those of the first."""


def findings(run: RunData) -> list[LimitFinding]:
    """Return one finding for each load level of a run that has a point which is not void, with what to try: `override` of a
    proposal is the argument of the next command. Raises StoreError."""
    knobs, attached = engine_knobs_of(run), not starts_engine(run)
    known = level_facts(run, knobs, attached=attached)
    return [with_proposals(find_limit(facts), run.config, knobs, attached=attached) for facts in known]


def findings_of(runs: Sequence[RunData]) -> list[tuple[str, LimitFinding]]:
    """Return the findings of some runs with the label of each; of a damaged run none."""
    labels, found = run_labels(runs), []
    for run in [one for one in runs if one.point_rows][:RUNS_MAX]:
        with suppress(StoreError):
            found += [(labels[run.run_id].text, one) for one in findings(run)]
    return found


def summary_of(runs: Sequence[RunData], known: Sequence[tuple[str, LimitFinding]]) -> LimitSummary:
    """Return what limits some runs, in their order, from their findings."""
    labels = run_labels(runs)
    measured = [labels[run.run_id].text for run in runs if run.point_rows]
    heaviest: dict[str, dict[Limit, LimitFinding]] = {label: {} for label in measured[:RUNS_MAX]}
    for label, one in sorted(known, key=lambda pair: pair[1].level):
        if one.found:
            heaviest[label][one.code] = one
    own = {label: sorted(found.values(), key=lambda one: one.level) for label, found in heaviest.items()}
    return LimitSummary(
        first=tuple((label, found[-1]) for label, found in own.items() if found),
        more=tuple((label, one) for label, found in own.items() for one in reversed(found[:-1])),
        without=tuple(label for label, found in own.items() if not found),
        unread=tuple(measured[RUNS_MAX:]),
        alone=len(runs) == 1,
    )
