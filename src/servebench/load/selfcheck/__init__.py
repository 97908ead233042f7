"""Measures the client's own error against a null server."""
