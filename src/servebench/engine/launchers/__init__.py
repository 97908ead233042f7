"""Ways to get a running engine: a process, a container, an attached endpoint, an emulated server."""
