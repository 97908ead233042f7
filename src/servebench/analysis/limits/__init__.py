"""What limits an engine at each load level, with the evidence, and which setting to try."""

from servebench.analysis.limits.decide import find_limit
from servebench.analysis.limits.facts import level_facts
from servebench.analysis.limits.model import Fact, Finding, LevelFacts, Proposal
from servebench.analysis.limits.proposals import engine_knobs_of, with_proposals
from servebench.contracts.stored import RunData

__all__ = ["Fact", "Finding", "LevelFacts", "Proposal", "find_limit", "findings", "level_facts"]


def findings(run: RunData) -> list[Finding]:
    """Return one finding for each load level of a run that has a point which is not void, with what to try: `override` of a
    proposal is the argument of the next command. Raises StoreError."""
    knobs = engine_knobs_of(run)
    return [with_proposals(find_limit(facts), facts, run.config, knobs) for facts in level_facts(run, knobs)]
