"""Settings by which real engines run on a CPU with little memory, a small model and no network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
VLLM_ON_A_CPU = {
    **OFFLINE, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
}  # fmt: skip
SMALL = {"max_model_len": 2048, "max_num_seqs": 16}
ON_A_CPU: Mapping[str, Mapping[str, Any]] = {
    "vllm": {**SMALL, "extra_args": {"enforce-eager": True}, "env": VLLM_ON_A_CPU},
    "sglang": {
        **SMALL,
        "extra_args": {"device": "cpu", "attention-backend": "torch_native", "max-total-tokens": 32768},
    },
    "transformers": {
        "device": "cpu",
        "extra_args": {"cb-block-size": 32, "cb-num-blocks": 512, "cb-max-batch-tokens": 512},
    },
}


def settings_on_a_cpu(engine: str, executable: str, **changes: Any) -> dict[str, Any]:
    """Return the settings of an engine whose program is here."""
    own = ON_A_CPU[engine]
    path = f"{Path(executable).parent}:{os.environ['PATH']}"
    env = {"HF_HUB_OFFLINE": "1", "PATH": path, **own.get("env", {})}
    return {**own, "executable": executable, "dtype": "bfloat16", "env": env, **changes}
