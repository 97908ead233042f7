"""servebench engine plugin: Ollama."""
