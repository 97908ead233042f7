"""The facts of a phase, which are stored beside its spool."""

from servebench.run.phase import PhaseFacts


def test_facts_are_stored_whatever_was_read_with_them(tmp_path):
    """What is derived from them is not stored; facts of an older version read no request timings."""
    facts = PhaseFacts(
        run_id="s/00",
        point="c1-r0",
        warmup=False,
        concurrency=1,
        repeat=0,
        planned={"r0": (1, 2, True)},
        timings_of="vllm",
    )
    assert facts.timings is not None
    path = tmp_path / "facts.json"
    path.write_bytes(facts.dump())
    again = PhaseFacts.load(path)
    assert (again.timings_of, again.trace, again.trace_headers) == ("vllm", "s/00/c1-r0", False)
    assert PhaseFacts.load(path).timings is not None
    path.write_bytes(path.read_bytes().replace(b'"timings_of":"vllm"', b'"timings_of":null'))
    assert PhaseFacts.load(path).timings is None
