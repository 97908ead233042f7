"""Which settings of an engine are best (`servebench tune`): candidates, the race between them, and its answer. All pure."""
