"""What limits an engine."""

from collections.abc import Iterator, Sequence

from servebench.analysis.limits import LimitFinding
from servebench.report.blocks import Block, Line
from servebench.report.wording.limits import action_text, fact_text, statement_of


def limit_blocks(found: Sequence[LimitFinding], *, verbose: bool = False) -> Iterator[Block]:
    """Yield the finding of each level and what to try first; `verbose` adds the evidence and everything to try."""
    for one in found:
        yield Line.of(f"limit at {one.level.words}: {statement_of(one)}")
        if verbose:
            yield from (Line.of(fact_text(fact), indent=2) for fact in one.evidence)
        for proposal in one.proposals[: None if verbose else 1]:
            setting = f" [{proposal.override}]" if verbose and proposal.override else ""
            yield Line.of(f"try: {action_text(proposal)}{setting}; it may cost: {proposal.cost}", indent=2)
