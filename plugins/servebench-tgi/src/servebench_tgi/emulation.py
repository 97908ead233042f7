"""How `launch=emulated` imitates Text Generation Inference."""

from __future__ import annotations

from servebench.plugin import Emulation, Loading

TGI = Emulation(
    max_num_seqs=128,
    token_budget=4096,
    mixed_steps=False,
    memory_fraction=0.95,
    queue_limit=0,
    overload="event",
    overload_status=429,
    first_chunk="role_every",
    completion_usage="finish",
    cached_tokens=False,
    loading_status=503,
    loading=(
        Loading(line="Starting check and download process for the model (emulated)", seconds=1.0),
        Loading(line="Successfully downloaded weights for the model", seconds=1.0),
        Loading(line="Shard ready in some seconds rank=0", seconds=5.0, seconds_per_gb=0.5),
        Loading(line="Warming up model", seconds=1.0),
        Loading(line="Setting max batch total tokens to (emulated)", seconds=5.0),
        Loading(line="Connected", seconds=0.5),
    ),
    out_of_memory_line="torch.OutOfMemoryError: CUDA out of memory (emulated)",
)
"""128 requests in total; more are rejected with 429, in a stream as an event inside HTTP 200."""
