"""Spans of a traced engine (OpenTelemetry): received during the load, read after it, and joined with its requests."""
