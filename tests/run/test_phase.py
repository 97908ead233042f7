"""The facts of a phase, which are stored beside its spool."""

from servebench.run.phase import dump_facts, load_facts, timings_reader
from support.records import phase_facts


def test_facts_are_stored_whatever_was_read_with_them(tmp_path):
    """What is derived from them is not stored; facts of an older version read no request timings."""
    facts = phase_facts(planned={"r0": (1, 2, True)}, timings_of="vllm")
    assert timings_reader(facts) is not None
    spool, path = tmp_path / "facts.spool", tmp_path / "facts.json"
    path.write_bytes(dump_facts(facts))
    again = load_facts(spool)
    assert (again.timings_of, again.name, again.span_headers) == ("vllm", "s/00/c1-r0", False)
    assert timings_reader(again) is not None
    path.write_bytes(path.read_bytes().replace(b'"timings_of":"vllm"', b'"timings_of":null'))
    assert timings_reader(load_facts(spool)) is None
    path.write_bytes(path.read_bytes().replace(b'"span_headers":false', b'"trace_headers":true'))
    assert load_facts(spool).span_headers, "an earlier version stored it under this name"
