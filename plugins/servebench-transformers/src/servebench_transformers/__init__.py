"""servebench engine plugin: transformers serve."""
