"""Spans of a traced engine (OpenTelemetry): received beside the load, read after it, and joined with its requests."""
