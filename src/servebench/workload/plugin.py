"""The built-in workloads, registered by an entry point as a third party registers its own."""

from collections.abc import Sequence

from servebench.contracts.hooks import hookimpl
from servebench.contracts.request import Workload


@hookimpl
def servebench_workloads() -> Sequence[type[Workload]]:
    """Return the built-in workloads."""
    from servebench.workload.agent_loop import AgentLoopWorkload
    from servebench.workload.long_context import LongContextWorkload
    from servebench.workload.mix import MixWorkload
    from servebench.workload.multi_turn import MultiTurnWorkload
    from servebench.workload.rag_prefix import RagPrefixWorkload
    from servebench.workload.sharegpt import ShareGptWorkload
    from servebench.workload.structured_json import StructuredJsonWorkload
    from servebench.workload.summarization import SummarizationWorkload
    from servebench.workload.trace import TraceWorkload
    from servebench.workload.unique import ShortWorkload, UniqueWorkload

    return (
        ShareGptWorkload,
        UniqueWorkload,
        ShortWorkload,
        RagPrefixWorkload,
        StructuredJsonWorkload,
        LongContextWorkload,
        SummarizationWorkload,
        TraceWorkload,
        MultiTurnWorkload,
        AgentLoopWorkload,
        MixWorkload,
    )
