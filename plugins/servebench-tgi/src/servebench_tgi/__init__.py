"""servebench engine plugin: Hugging Face's Text Generation Inference."""
