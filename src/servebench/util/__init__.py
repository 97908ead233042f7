"""Small helpers without knowledge of benchmarks: clock, units, errors, signals, standard streams, bounded HTTP, redaction."""
