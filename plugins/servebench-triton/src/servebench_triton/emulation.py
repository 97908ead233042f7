"""How `launch=emulated` imitates Triton's OpenAI frontend."""

from __future__ import annotations

from servebench.plugin import Emulation, Loading

TRITON = Emulation(
    max_num_seqs=256,
    max_num_seqs_big=1024,
    token_budget=2048,
    token_budget_big=8192,
    overload="queue",
    request_overhead_ms=3.0,
    first_chunk="role_early",
    cached_tokens=False,
    error_shape="detail",
    strict_fields=422,
    loading=(
        Loading(
            line="INFO [default_loader.py] Loading weights took some seconds (emulated)",
            seconds=8.0,
            seconds_per_gb=0.5,
        ),
        Loading(line="INFO [gpu_model_runner.py] Graph capturing finished in some seconds", seconds=15.0),
        Loading(
            line="INFO [core.py] init engine (profile, create kv cache, warmup model) took some seconds", seconds=1.0
        ),
        Loading(line="| (emulated) | 1       | READY  |"),
        Loading(line="Found model: name='(emulated)', backend='vllm'"),
        Loading(line="INFO:     Application startup complete.", seconds=1.0),
    ),
    metrics={"nv_inference_request_success": "requests"},
)
"""vLLM's scheduler behind a frontend that sends its first event before generation begins; its cost is a guess."""
