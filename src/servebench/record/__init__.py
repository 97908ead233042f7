"""Records the traffic of a running service as a trace, without its content: a proxy, and a process that reads its copies."""
