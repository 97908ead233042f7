"""servebench engine plugin: Triton's OpenAI frontend over vLLM or TensorRT-LLM."""
