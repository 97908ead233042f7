"""How `launch=emulated` imitates Ollama."""

from __future__ import annotations

from servebench.plugin import Emulation, Loading

OLLAMA = Emulation(
    max_num_seqs=1,
    token_budget=512,
    prefix_cache="slots",
    step_overhead_ms=0.5,
    memory_efficiency=0.7,
    queue_limit=512,
    overload="status",
    first_chunk="none",
    finish_alone=True,
    cached_tokens=False,
    zero_usage=True,
    structured_ms=0.3,
    loading=(
        Loading(line='msg="Listening on the address asked for (emulated)"', seconds=0.2),
        Loading(line='msg="starting llama-server (emulated)"', seconds=0.5),
        Loading(line='msg="llama-server started in some seconds"', seconds=1.0, seconds_per_gb=0.5),
    ),
    out_of_memory_line='msg="model requires more system memory than is available (emulated)"',
)
"""One request at a time unless OLLAMA_NUM_PARALLEL says otherwise, and 512 in the queue."""
