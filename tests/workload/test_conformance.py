"""servebench's own workloads keep what is asked of a plugin's."""

from __future__ import annotations

from servebench.testing import WorkloadConformance
from servebench.workload.agent_loop import AgentLoopWorkload
from servebench.workload.long_context import LongContextWorkload
from servebench.workload.mix import MixWorkload
from servebench.workload.multi_turn import MultiTurnWorkload
from servebench.workload.rag_prefix import RagPrefixWorkload
from servebench.workload.sharegpt import ShareGptWorkload
from servebench.workload.structured_json import StructuredJsonWorkload
from servebench.workload.summarization import SummarizationWorkload
from servebench.workload.trace import TraceWorkload
from servebench.workload.unique import UniqueWorkload


class TestUnique(WorkloadConformance):
    workload = UniqueWorkload
    exact_input = True


class Quick(WorkloadConformance):
    """Without the command, which the flow tests run with each of these."""

    __test__ = False
    test_the_command_shows_it = None
    test_the_command_sends_it = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.__test__ = True


class TestRagPrefix(Quick):
    workload = RagPrefixWorkload
    exact_input = True


class TestStructuredJson(Quick):
    workload = StructuredJsonWorkload
    settings = {"twins": True, "tiers": ["flat", "enum"]}


class TestSummarization(Quick):
    workload = SummarizationWorkload
    settings = {"input_tokens": 400}


class TestLongContext(Quick):
    workload = LongContextWorkload
    settings = {"input_tokens": 600}


class TestTrace(Quick):
    workload = TraceWorkload
    fresh_streams = False
    bounds_output = False


class TestShareGpt(Quick):
    workload = ShareGptWorkload


class TestMultiTurn(Quick):
    workload = MultiTurnWorkload


class TestAgentLoop(Quick):
    workload = AgentLoopWorkload


class TestMix(Quick):
    workload = MixWorkload
    bounds_output = False
    settings = {"parts": {"unique": {"weight": 2}, "structured_json": {}}}
