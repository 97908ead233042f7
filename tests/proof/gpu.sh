#!/usr/bin/env bash
# The proof on a machine with one GPU and without a network, in 30 minutes (prepared, not yet run on a GPU).
#   tests/proof/gpu.sh WHEELS TOKENIZER [OUTPUTS]
# WHEELS:    folder of wheels that servebench and `transformers serve` lack there (hydra-core, pydantic, fastapi, uvicorn ...)
# TOKENIZER: Hugging Face folder with the files of a tokenizer; the model gets random weights, which take as long as real ones
# The image has CPython, torch for CUDA, transformers, numpy, pandas, pyarrow, scipy, httpx, psutil, rich and click.
# Afterwards OUTPUTS has all raw files, and OUTPUTS/proof.md the page; the same command goes on where it stopped.
set -euo pipefail
wheels=${1:?folder of wheels} tokenizer=$(realpath "${2:?folder of a tokenizer}") outputs=$(realpath -m "${3:-outputs/proof}")
cd "$(dirname "$0")/../.."
site=/tmp/proof-site model=$outputs/model
[ -d "$site" ] || python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
export PYTHONPATH=$site:src:plugins/servebench-transformers/src:tests SERVEBENCH_REAL_MODEL=$model HF_HUB_OFFLINE=1
if [ ! -f "$model/config.json" ]; then
    mkdir -p "$model"
    cp "$tokenizer"/*token* "$tokenizer"/*.txt "$tokenizer"/vocab* "$model" 2>/dev/null || true
    python3 - "$model" <<'PYTHON'
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
tokens = len(AutoTokenizer.from_pretrained(sys.argv[1]))
config = LlamaConfig(vocab_size=-(-tokens // 64) * 64, hidden_size=2048, intermediate_size=5632, num_hidden_layers=24,
                     num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=4096)
AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(sys.argv[1])
PYTHON
fi
# nvidia-h100 with about 10 s to start: 15 rounds of three starts of three points of 8 s, and a long run of three minutes
exec python3 -m proof --engine "${ENGINE:-transformers_gpu}" --neighbour none --levels 1,8,32 --seconds 8 --rounds 15 \
    --long-points 8 --minutes "${MINUTES:-28}" --outputs "$outputs" --output "$outputs/proof.md" gpu.count=1
