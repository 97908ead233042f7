"""What limits an engine, in the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from servebench.analysis.limits import Fact, LimitFinding
from servebench.contracts.point_row import level_words
from servebench.util.figures import number, short_percent


def print_findings(found: Sequence[LimitFinding], out: Console, *, verbose: bool = False) -> None:
    """Print the finding of each level and what to try first; `verbose` adds the evidence and everything to try."""
    for one in found:
        out.print(Text(f"limit at {level_words(one.level)}: {one.statement}"))
        if verbose:
            for fact in one.evidence:
                out.print(Text(f"  {fact_text(fact)}"))
        for proposal in one.proposals[: None if verbose else 1]:
            setting = f" [{proposal.override}]" if verbose and proposal.override else ""
            out.print(Text(f"  try: {proposal.action}{setting}; it may cost: {proposal.cost}"))


def fact_text(fact: Fact) -> str:
    """Return a piece of evidence with the threshold that it passed."""

    def text(value: float) -> str:
        return f"{number(value)} {fact.unit}" if fact.unit else short_percent(value) if fact.share else number(value)

    bounds = [
        f"{word} {text(bound)}"
        for word, bound in (("at least", fact.at_least), ("below", fact.below))
        if bound is not None
    ]
    return f"{fact.name}: {text(fact.value)}" + (f" (threshold: {', '.join(bounds)})" if bounds else "")
