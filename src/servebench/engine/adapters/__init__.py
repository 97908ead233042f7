"""The built-in engines: command line, readiness, metrics and emulation of each."""
