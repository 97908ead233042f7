"""The built-in scorers, registered by an entry point as a third party registers its own."""

from collections.abc import Sequence

from servebench.contracts.hooks import hookimpl
from servebench.contracts.quality import Scorer


@hookimpl
def servebench_scorers() -> Sequence[type[Scorer]]:
    """Return the built-in scorers."""
    from servebench.quality.scorers.gsm8k import Gsm8kScorer
    from servebench.quality.scorers.mmlu import MmluScorer
    from servebench.quality.scorers.parity import ParityScorer
    from servebench.quality.scorers.structured import JsonScorer

    return (MmluScorer, Gsm8kScorer, JsonScorer, ParityScorer)
