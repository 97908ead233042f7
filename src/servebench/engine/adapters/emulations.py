"""How the built-in engines are emulated: scheduler defaults, chunks, log lines and metric names.

From the sources and documentation of vLLM 0.33, SGLang 0.5.23 and TensorRT-LLM 1.2. Cold start times have the order of
magnitude of large GPUs: weights at 2 GB/s from disk, compilation and graph capture per engine.
"""

from servebench.contracts.emulation import Emulation, Loading

DISK_S_PER_GB = 0.5

VLLM = Emulation(
    max_num_seqs=256,
    max_num_seqs_big=1024,
    token_budget=2048,
    token_budget_big=8192,
    memory_fraction=0.92,
    prefix_cache="blocks",
    queue_limit_flag="max-num-queued-reqs",
    overload="status",
    first_chunk="role_empty",
    loading=(
        Loading(line="INFO [utils.py] non-default args: (emulated)", seconds=6.0),
        Loading(line="INFO [gpu_model_runner.py] Starting to load model", seconds=2.0),
        Loading(line="INFO [default_loader.py] Loading weights took {gb} GB at 2 GB/s", seconds_per_gb=DISK_S_PER_GB),
        Loading(line="INFO [monitor.py] Initial profiling/warmup run took some seconds", seconds=8.0),
        Loading(line="INFO [gpu_model_runner.py] Graph capturing finished in some seconds", seconds=7.0),
        Loading(line="INFO [core.py] init engine (profile, create kv cache, warmup model) took some seconds"),
        Loading(line="INFO:     Application startup complete.", seconds=1.0),
    ),
    out_of_memory_line="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (emulated)",
    metric_labels='model_name="{model}",engine="0"',
    metrics={
        "vllm:prompt_tokens_cached_total": "prefix_cache_hits_tokens",
        "vllm:request_success_total": "requests",
        "vllm:time_to_first_token_seconds": "ttft",
        "vllm:e2e_request_latency_seconds": "e2e",
    },
)

SGLANG = Emulation(
    max_num_seqs=2048,
    token_budget=2048,
    token_budget_big=8192,
    mixed_steps=False,
    memory_fraction=0.88,
    prefix_cache="radix",
    longest_prefix_first=True,
    queue_limit_flag="max-queued-requests",
    overload="event",
    first_chunk="role_empty",
    finish_alone=True,
    structured_ms=0.02,
    loading_status=503,
    loading=(
        Loading(line="Load weight begin. avail mem=79.00 GB (emulated)", seconds=8.0),
        Loading(line="Load weight end. weights {gb} GB", seconds_per_gb=DISK_S_PER_GB),
        Loading(line="Capture decode CUDA graph begin. This can take up to several minutes.", seconds=1.0),
        Loading(line="Capture decode CUDA graph end. Time elapsed: some seconds", seconds=10.0),
        Loading(line="max_total_num_tokens=(emulated), max_running_requests=2048", seconds=1.0),
        Loading(line="The server is fired up and ready to roll!", seconds=2.0),
    ),
    out_of_memory_line="RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. (emulated)",
    metric_labels='model_name="{model}",engine_type="unified",tp_rank="0",pp_rank="0"',
    metrics={
        "sglang:cache_hit_rate": "hit_rate",
        "sglang:num_requests_total": "requests",
        "sglang:time_to_first_token_seconds": "ttft",
        "sglang:e2e_request_latency_seconds": "e2e",
    },
)

TRTLLM = Emulation(
    max_num_seqs=2048,
    token_budget=8192,
    chunked_prefill=False,
    reserve_output=True,
    memory_fraction=0.9,
    prefix_cache="blocks",
    block_tokens=32,
    batch_sizes=(1, 2, 4, 8, 16, 32, 64, 128),
    step_overhead_ms=0.5,
    sequence_overhead_ms=0.005,
    queue_limit_flag="max-queued-requests",
    overload="status",
    first_chunk="role_only",
    line_end=" ",
    error_shape="flat",
    strict_fields=400,
    loading=(
        Loading(line="[TRT-LLM] [I] Prefetching {gb} GB checkpoint files.", seconds=8.0),
        Loading(line="[TRT-LLM] [I] Loading safetensors weights in parallel: done", seconds_per_gb=DISK_S_PER_GB),
        Loading(line="[TRT-LLM] [I] [Autotuner] Autotuning process starts ...", seconds=1.0),
        Loading(line="[TRT-LLM] [I] [Autotuner] Autotuning process ends", seconds=25.0),
        Loading(line="[TRT-LLM] [I] Creating CUDA graph instances for 8 batch sizes.", seconds=12.0),
        Loading(line="[TRT-LLM] [I] Loading model done.", seconds=5.0),
        Loading(line="INFO:     Application startup complete.", seconds=2.0),
    ),
    out_of_memory_line="torch.OutOfMemoryError: CUDA out of memory. (emulated)",
    metrics={
        "trtllm_request_success_total": "requests",
        "trtllm_time_to_first_token_seconds": "ttft",
        "trtllm_e2e_request_latency_seconds": "e2e",
        "trtllm_kv_cache_hit_rate": "hit_rate",
    },
    metric_labels='model_name="{model}",engine_type="undefined"',
)
