"""How `launch=emulated` imitates LMDeploy."""

from __future__ import annotations

from servebench.plugin import Emulation, Loading

LMDEPLOY = Emulation(
    max_num_seqs=128,
    max_num_seqs_big=1024,
    token_budget=8192,
    prefix_cache="blocks",
    prefix_cache_default=False,
    block_tokens=64,
    memory_fraction=0.8,
    step_overhead_ms=0.5,
    sequence_overhead_ms=0.005,
    first_chunk="role_every",
    error_shape="flat",
    loading=(
        Loading(line="INFO Building Model.", seconds=3.0),
        Loading(line="INFO Building GraphRunner and warmup ops, please waiting.", seconds_per_gb=0.5),
        Loading(line="INFO Building CacheEngine (emulated)", seconds=1.0),
        Loading(line="INFO Engine warmup completed in some seconds", seconds=5.0),
        Loading(line="HINT:    Please open the address asked for in a browser", seconds=0.5),
    ),
    out_of_memory_line="torch.OutOfMemoryError: CUDA out of memory (emulated)",
)
"""Prefix caching is off by default; every delta of a chat has the role."""
