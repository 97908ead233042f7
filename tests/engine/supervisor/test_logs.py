from servebench.contracts.engine import LogHint, PhaseMarker
from servebench.engine.supervisor.logs import PhaseReader, find_hint, last_lines, log_size

MARKERS = (PhaseMarker("loaded", r"Loading weights took \d"), PhaseMarker("up", "startup complete"))


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def test_the_last_lines_skip_blank_ones(log):
    """Only lines after `since` count; bytes that are not text are replaced."""
    append(log, b"old\n")
    start = log_size(log)
    append(log, b"one\n\n  \ntwo \xff\nthree")
    assert last_lines(log, 2) == ("two \ufffd", "three")
    assert last_lines(log, since=start) == ("one", "two \ufffd", "three")
    assert last_lines(log.with_name("none")) == ()
    assert log_size(log.with_name("none")) == 0


def test_a_long_log_is_not_read_whole(log):
    append(log, b"".join(b"line %d\n" % index for index in range(50_000)))
    assert last_lines(log, 2) == ("line 49998", "line 49999")


def test_the_first_matching_hint_is_returned(log):
    append(log, b"second\nfirst\n")
    hints = (LogHint("third", "a", "x"), LogHint("first", "b", "y"), LogHint("second", "c", "z"))
    assert find_hint(log, hints) == hints[1]
    assert find_hint(log, hints, since=7) == hints[1]
    assert find_hint(log, hints[:1]) is None
    assert find_hint(log, hints[2:], since=7) is None


def test_a_marker_is_stamped_once_when_its_line_is_complete(log):
    """A line may arrive in pieces, even within a character; a second matching line does not count."""
    phases = PhaseReader(log, MARKERS)
    assert phases.read() == []
    append(log, "Loading weights took 3 s \u00e9".encode()[:-1])
    assert phases.read() == []
    append(log, "\u00e9".encode()[-1:] + b"\n")
    (loaded,) = phases.read()
    assert loaded.name == "loaded"
    append(log, b"Loading weights took 4 s\nstartup complete\n")
    (up,) = phases.read()
    assert (up.name, up.ended_ns >= loaded.ended_ns) == ("up", True)
    assert phases.read() == []
