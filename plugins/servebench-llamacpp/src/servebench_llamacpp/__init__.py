"""servebench engine plugin: llama.cpp."""
