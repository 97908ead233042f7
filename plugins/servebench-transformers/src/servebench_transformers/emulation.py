"""How `launch=emulated` imitates `transformers serve`."""

from __future__ import annotations

from dataclasses import replace

from servebench.plugin import Emulation, Loading

BATCHED = Emulation(
    max_num_seqs=1024,
    token_budget=2048,
    block_tokens=256,
    step_overhead_ms=6.0,
    sequence_overhead_ms=0.05,
    first_chunk="role_early",
    finish_alone=True,
    usage="finish",
    completion_usage="finish",
    cached_tokens=False,
    error_shape="detail",
    strict_fields=422,
    loading=(
        Loading(line="Loading the model (emulated)", seconds=3.0),
        Loading(line="Model loaded", seconds_per_gb=0.5),
        Loading(line="INFO:     Application startup complete.", seconds=1.0),
    ),
    out_of_memory_line="torch.OutOfMemoryError: CUDA out of memory (emulated)",
)
NAIVE = replace(BATCHED, max_num_seqs=1, prefix_cache="none", token_budget=1_000_000, step_overhead_ms=15.0)
"""Without continuous batching: one request at a time, each kernel launched from Python."""
