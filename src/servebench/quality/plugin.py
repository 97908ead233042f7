"""The built-in scorers, registered by an entry point as a third party registers its own."""

from __future__ import annotations

from collections.abc import Sequence

from servebench.contracts.hooks import hookimpl
from servebench.contracts.quality import Scorer


@hookimpl
def servebench_scorers() -> Sequence[type[Scorer]]:
    """What servebench can grade."""
    from servebench.quality.gsm8k import Gsm8kScorer
    from servebench.quality.humaneval import HumanEvalScorer
    from servebench.quality.judge import JudgeScorer
    from servebench.quality.lm_eval import LmEvalScorer
    from servebench.quality.mmlu import MmluScorer
    from servebench.quality.parity import ParityScorer
    from servebench.quality.rouge import RougeScorer
    from servebench.quality.structured import JsonScorer

    return (MmluScorer, Gsm8kScorer, HumanEvalScorer, JsonScorer, RougeScorer, JudgeScorer, ParityScorer, LmEvalScorer)
