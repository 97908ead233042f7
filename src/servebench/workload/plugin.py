"""The built-in workloads, registered by an entry point as a third party registers its own."""

from collections.abc import Mapping

from servebench.contracts.hooks import hookimpl


@hookimpl
def servebench_workloads() -> Mapping[str, str]:
    """Return the built-in workloads."""
    return {
        "dataset": "servebench.workload.dataset:DatasetWorkload",
        "sharegpt": "servebench.workload.dataset:ShareGptWorkload",
        "unique": "servebench.workload.unique:UniqueWorkload",
        "short": "servebench.workload.unique:ShortWorkload",
        "medium": "servebench.workload.unique:MediumWorkload",
        "rag_prefix": "servebench.workload.rag_prefix:RagPrefixWorkload",
        "structured_json": "servebench.workload.structured_json:StructuredJsonWorkload",
        "long_context": "servebench.workload.long_context:LongContextWorkload",
        "summarization": "servebench.workload.summarization:SummarizationWorkload",
        "agent_trace": "servebench.workload.agent_trace:AgentTraceWorkload",
        "trace": "servebench.workload.trace:TraceWorkload",
        "multi_turn": "servebench.workload.multi_turn:MultiTurnWorkload",
        "agent_loop": "servebench.workload.agent_loop:AgentLoopWorkload",
        "embeddings": "servebench.workload.pooling:EmbeddingsWorkload",
        "rerank": "servebench.workload.pooling:RerankWorkload",
        "mix": "servebench.workload.mix:MixWorkload",
    }
