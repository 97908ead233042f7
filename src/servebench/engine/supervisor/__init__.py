"""The life of an engine process: guard, ports, log, readiness, stop."""
