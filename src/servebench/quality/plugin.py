"""The built-in scorers, registered by an entry point as a third party registers its own."""

from collections.abc import Mapping

from servebench.contracts.hooks import hookimpl


@hookimpl
def servebench_scorers() -> Mapping[str, str]:
    """Return the built-in scorers."""
    return {
        "mmlu": "servebench.quality.scorers.mmlu:MmluScorer",
        "gsm8k": "servebench.quality.scorers.gsm8k:Gsm8kScorer",
        "json": "servebench.quality.scorers.structured:JsonScorer",
        "parity": "servebench.quality.scorers.parity:ParityScorer",
        "rerank": "servebench.quality.scorers.rerank:RerankScorer",
        "tool_calls": "servebench.quality.scorers.tool_calls:ToolCallScorer",
    }
