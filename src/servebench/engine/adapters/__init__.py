"""The built-in engines: flags, readiness, metrics and emulation of each."""
