"""Starts the workers of one phase of load, watches them and merges what they report."""
