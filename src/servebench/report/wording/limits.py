"""The text of what limits an engine."""

from servebench.analysis.limits import Fact
from servebench.util.figures import number, short_percent


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
