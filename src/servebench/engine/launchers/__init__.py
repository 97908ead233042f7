"""Ways to get a running engine: a process, a container, a running endpoint, or an emulated server."""
