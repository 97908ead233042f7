"""Same settings and seed, same bytes: in another process, with another hash seed, today and next year."""

from __future__ import annotations

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

tokenizer = runpy.run_path(sys.argv[1])[sys.argv[2]]()
spec = LengthSettings(kind="lognormal", mean=200, stdev=100, min=64, max=500)
common = {"seed": int(sys.argv[3]), "input_tokens": spec, "output_tokens": spec}
workloads = [
    UniqueWorkload(WorkloadSettings(name="unique", **common)),
    RagPrefixWorkload(RagPrefixSettings(name="rag_prefix", skew=1.0, cache="cold", **common)),
    ShareGptWorkload(ShareGptSettings(name="sharegpt", cache="cold", seed=int(sys.argv[3]))),
    StructuredJsonWorkload(StructuredJsonSettings(name="structured_json", twins=True, seed=int(sys.argv[3]))),
    LongContextWorkload(LongContextSettings(name="long_context", seed=int(sys.argv[3]), input_tokens=600)),
    SummarizationWorkload(SummarizationSettings(name="summarization", seed=int(sys.argv[3]), input_tokens=900)),
    TraceWorkload(TraceSettings(name="trace", seed=int(sys.argv[3]), cache="cold")),
    MultiTurnWorkload(MultiTurnSettings(name="multi_turn", seed=int(sys.argv[3]), think_s=1.0)),
    AgentLoopWorkload(AgentLoopSettings(name="agent_loop", seed=int(sys.argv[3]), fan_out=2)),
    MixWorkload(MixSettings(name="mix", seed=int(sys.argv[3]), parts={"unique": {"weight": 2}, "sharegpt": {}})),
]
for workload in workloads:
    requests = workload.requests(8, stream="c4-0", tokenizer=tokenizer)
    print(workload.name, hashlib.sha256(repr(requests).encode()).hexdigest())
"""


def digests(tokenizer: str, *, seed: int, hash_seed: int) -> list[str]:
    """A line for each workload: its name and the hash of all its requests."""
    conftest = Path(__file__).with_name("conftest.py")
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(conftest), tokenizer, str(seed)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    return finished.stdout.splitlines()


@pytest.mark.parametrize("tokenizer", ["PieceTokenizer", "QuarterTokenizer"])
def test_other_processes(tokenizer: str) -> None:
    """A fresh process whose hashes of text are others gives the same requests; another seed gives others."""
    first = digests(tokenizer, seed=0, hash_seed=1)
    assert len(first) == 10
    assert digests(tokenizer, seed=0, hash_seed=2) == first
    assert not set(digests(tokenizer, seed=1, hash_seed=1)) & set(first)
