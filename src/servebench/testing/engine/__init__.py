"""The parts of the conformance suite of engines; `servebench.testing.conformance` puts them together."""
