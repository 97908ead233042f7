"""How `launch=emulated` imitates llama.cpp."""

from __future__ import annotations

from servebench.plugin import Emulation, Loading

LLAMACPP = Emulation(
    max_num_seqs=4,
    token_budget=2048,
    prefix_cache="slots",
    step_overhead_ms=0.3,
    memory_efficiency=0.7,
    first_chunk="role_null",
    finish_alone=True,
    completion_usage="finish",
    structured_ms=0.3,
    loading_status=503,
    loading=(
        Loading(line="srv    load_model: loading model '(emulated).gguf'", seconds=0.2),
        Loading(line="slot   initializing, n_slots = 4 (emulated)", seconds_per_gb=0.5),
        Loading(line="main: model loaded", seconds=0.3),
        Loading(line="main: server is listening on the address asked for"),
    ),
    out_of_memory_line="ggml_backend_cuda_buffer_type_alloc_buffer: out of memory (emulated)",
    metrics={
        "llamacpp:prompt_tokens_total": "prompt_tokens_computed",
        "llamacpp:prompt_tokens_cached_total": "prefix_cache_hits_tokens",
    },
)
"""Four slots, each with its own conversation; further requests wait. Prompts and decoding share a step."""
