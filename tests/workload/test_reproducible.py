"""Same settings and seed, same bytes: in another process, with another hash seed, today and next year."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hashlib, runpy, sys
from servebench.contracts.settings import LengthSettings, WorkloadSettings
from servebench.workload.agent_loop import AgentLoopSettings, AgentLoopWorkload
from servebench.workload.long_context import LongContextSettings, LongContextWorkload
from servebench.workload.mix import MixSettings, MixWorkload
from servebench.workload.multi_turn import MultiTurnSettings, MultiTurnWorkload
from servebench.workload.rag_prefix import RagPrefixSettings, RagPrefixWorkload
from servebench.workload.sharegpt import ShareGptSettings, ShareGptWorkload
from servebench.workload.structured_json import StructuredJsonSettings, StructuredJsonWorkload
from servebench.workload.summarization import SummarizationSettings, SummarizationWorkload
from servebench.workload.trace import TraceSettings, TraceWorkload
from servebench.workload.unique import UniqueWorkload

tokenizers = [runpy.run_path(sys.argv[1])[name]() for name in ("PieceTokenizer", "QuarterTokenizer")]
spec = LengthSettings(kind="lognormal", mean=200, stdev=100, min=64, max=500)

def workloads(seed):
    common = {"seed": seed, "input_tokens": spec, "output_tokens": spec}
    return [
        UniqueWorkload(WorkloadSettings(name="unique", **common)),
        RagPrefixWorkload(RagPrefixSettings(name="rag_prefix", skew=1.0, cache="cold", **common)),
        ShareGptWorkload(ShareGptSettings(name="sharegpt", cache="cold", seed=seed)),
        StructuredJsonWorkload(StructuredJsonSettings(name="structured_json", twins=True, seed=seed)),
        LongContextWorkload(LongContextSettings(name="long_context", seed=seed, input_tokens=600)),
        SummarizationWorkload(SummarizationSettings(name="summarization", seed=seed, input_tokens=900)),
        TraceWorkload(TraceSettings(name="trace", seed=seed, cache="cold")),
        MultiTurnWorkload(MultiTurnSettings(name="multi_turn", seed=seed, think_s=1.0)),
        AgentLoopWorkload(AgentLoopSettings(name="agent_loop", seed=seed, fan_out=2)),
        MixWorkload(MixSettings(name="mix", seed=seed, parts={"unique": {"weight": 2}, "sharegpt": {}})),
    ]


for seed in map(int, sys.argv[2:]):
    for tokenizer in tokenizers:
        for workload in workloads(seed):
            requests = workload.requests(8, stream="c4-0", tokenizer=tokenizer)
            print(seed, tokenizer.name, workload.name, hashlib.sha256(repr(requests).encode()).hexdigest(), sep=",")
"""


def start(hash_seed, *seeds):
    """Start a process that prints a line for each seed, tokenizer and workload, with the hash of all its requests."""
    words = [str(Path(__file__).with_name("conftest.py")), *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *words], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_other_processes():
    """A fresh process whose hashes of text are others gives the same requests; another seed gives others."""
    both = [start(1, 0, 1), start(2, 0)]
    first, second = (process.communicate(timeout=500)[0].splitlines() for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert len(second) == 2 * 10
    assert first[:20] == second
    digests = [line.rpartition(",")[2] for line in first]
    assert not set(digests[:20]) & set(digests[20:])
