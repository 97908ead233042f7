"""Watch the engine and the machine while the load runs."""
