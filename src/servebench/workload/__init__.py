"""Workloads: requests, reproducible to the byte from a seed. Nothing here knows engines or load."""
