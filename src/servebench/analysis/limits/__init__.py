"""What limits an engine at each load level, with the evidence, and which setting to try."""

from collections.abc import Sequence
from contextlib import suppress

from servebench.analysis.limits.decide import find_limit
from servebench.analysis.limits.facts import level_facts
from servebench.analysis.limits.model import Fact, LevelFacts, LimitFinding, Proposal
from servebench.analysis.limits.proposals import engine_knobs_of, starts_engine, with_proposals
from servebench.contracts.labels import run_labels
from servebench.contracts.limits import Limit
from servebench.contracts.stored import RunData
from servebench.util.errors import StoreError

__all__ = [
    "RUNS_MAX",
    "Fact",
    "LevelFacts",
    "LimitFinding",
    "Proposal",
    "find_limit",
    "findings",
    "findings_of",
    "level_facts",
    "limit_lines",
]

RUNS_MAX = 6
"""Findings need all requests of a run: of more runs with points a page has those of the first."""


def findings(run: RunData) -> list[LimitFinding]:
    """Return one finding for each load level of a run that has a point which is not void, with what to try: `override` of a
    proposal is the argument of the next command. Raises StoreError."""
    knobs, attached = engine_knobs_of(run), not starts_engine(run)
    known = level_facts(run, knobs, attached=attached)
    return [with_proposals(find_limit(facts), facts, run.config, knobs, attached=attached) for facts in known]


def findings_of(runs: Sequence[RunData]) -> list[tuple[str, LimitFinding]]:
    """Return the findings of some runs with the label of each; of a damaged run none."""
    labels, found = run_labels(runs), []
    for run in [one for one in runs if one.point_rows][:RUNS_MAX]:
        with suppress(StoreError):
            found += [(labels[run.run_id].text, one) for one in findings(run)]
    return found


def limit_lines(runs: Sequence[RunData], known: Sequence[tuple[str, LimitFinding]] | None = None) -> list[str]:
    """Return what limits some runs, in their order: first a line for each run, of its heaviest load that has a limit, then who
    has none and who was not looked at, then the other limits of runs, each at its heaviest load. `known` are their findings."""
    labels = run_labels(runs)
    measured = [run for run in runs if run.point_rows]
    found: dict[str, dict[Limit, tuple[float, str]]] = {labels[run.run_id].text: {} for run in measured[:RUNS_MAX]}
    for label, one in findings_of(runs) if known is None else known:
        where = one.level.words if len(runs) == 1 else f"{label} at {one.level.words}"
        override = next((proposal.override for proposal in one.proposals if proposal.override), None)
        line = f"Limit: {where}: {one.statement}" + (f"; try {override}" if override else "")
        if one.code is not Limit.NONE:
            found[label][one.code] = max(found[label].get(one.code, (0.0, "")), (one.level.load, line))
    own = [[line for _, line in sorted(lines.values(), reverse=True)] for lines in found.values()]
    without = [label for label, lines in found.items() if not lines]
    rest = [labels[run.run_id].text for run in measured[RUNS_MAX:]]
    if not any(own) and not rest:
        return []
    return [
        *(lines[0] for lines in own if lines),
        *([f"Limit: none found for {', '.join(without)}"] if without else []),
        *([f"Limit: 'servebench show RUN' has those of {', '.join(rest)}"] if rest else []),
        *(line for lines in own for line in lines[1:]),
    ]
