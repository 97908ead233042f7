"""servebench's own workloads keep what is asked of a plugin's."""

from servebench.testing import WorkloadConformance
from servebench.workload.agent_loop import AgentLoopWorkload
from servebench.workload.agent_trace import AgentTraceWorkload
from servebench.workload.dataset import DatasetWorkload, ShareGptWorkload
from servebench.workload.long_context import LongContextWorkload
from servebench.workload.mix import MixWorkload
from servebench.workload.multi_turn import MultiTurnWorkload
from servebench.workload.pooling import EmbeddingsWorkload, RerankWorkload
from servebench.workload.rag_prefix import RagPrefixWorkload
from servebench.workload.structured_json import StructuredJsonWorkload
from servebench.workload.summarization import SummarizationWorkload
from servebench.workload.trace import TraceWorkload
from servebench.workload.unique import ShortWorkload, UniqueWorkload


class TestUnique(WorkloadConformance):
    workload = UniqueWorkload
    exact_input = True


class Quick(WorkloadConformance):
    """Without the command: tests of the command run these workloads."""

    test_preview = test_run = None


class TestShort(Quick):
    workload = ShortWorkload
    exact_input = True


class TestRagPrefix(Quick):
    workload = RagPrefixWorkload
    exact_input = True


class TestStructuredJson(Quick):
    workload = StructuredJsonWorkload
    settings = {"twins": True, "tiers": ["flat", "enum"]}


class TestSummarization(WorkloadConformance):
    workload = SummarizationWorkload
    settings = {"input_tokens": 400}


class TestLongContext(WorkloadConformance):
    workload = LongContextWorkload
    settings = {"input_tokens": 600}


class TestTrace(WorkloadConformance):
    workload = TraceWorkload
    fresh_streams = False
    bounds_output = False


class TestAgentTrace(Quick):
    workload = AgentTraceWorkload
    fresh_streams = False
    bounds_output = False


class TestShareGpt(Quick):
    workload = ShareGptWorkload


class TestDataset(Quick):
    workload = DatasetWorkload
    settings = {"dataset": "builtin", "cache": "cold"}


class TestMultiTurn(Quick):
    workload = MultiTurnWorkload


class TestAgentLoop(Quick):
    workload = AgentLoopWorkload


class TestEmbeddings(WorkloadConformance):
    workload = EmbeddingsWorkload
    exact_input = True


class TestRerank(WorkloadConformance):
    workload = RerankWorkload
    test_prompt_lengths = None  # a query counts with each document


class TestMix(WorkloadConformance):
    workload = MixWorkload
    bounds_output = False
    settings = {"parts": {"unique": {"weight": 2}, "structured_json": {}}}
