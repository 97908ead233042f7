"""Supervise an engine process: guard, ports, log, readiness and stop."""
