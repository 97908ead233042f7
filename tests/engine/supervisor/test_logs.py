import pytest

from servebench.contracts.engine import LogHint, PhaseMarker
from servebench.engine.supervisor import logs
from servebench.engine.supervisor.logs import PhaseReader, explain_failure, last_lines, log_size

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
    assert explain_failure("died", log, hints)[1] == hints[1]
    assert explain_failure("died", log, hints, since=7)[1] == hints[1]
    assert explain_failure("died", log, hints[:1])[1] is None
    assert explain_failure("died", log, hints[2:], since=7)[1] is None


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("one\ntwo\n", "last log line: two"),
        ("one, e.g. `OSError: [Errno 24]`\ntwo\n", "last log line: two"),
        (
            "Traceback\nKeyError: 'a'\n\nDuring handling\nmy.pkg.LoadError: no b\nbye\n",
            "in its log: my.pkg.LoadError: no b",
        ),
        (
            # as vLLM and Python 3.11 write it
            "(Worker pid=7) ERROR 11-27 16:31:27 [x.py:10] RuntimeError: no CPU attention for head_dim=16\n"
            "(EngineCore pid=6) ERROR 11-27 16:31:27 [core.py:9]     raise RuntimeError(\n"
            "(EngineCore pid=6) ERROR 11-27 16:31:27 [core.py:9] RuntimeError: Worker failed, see the stack trace above\n"
            "(API pid=5) x.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the cause.\n"
            "  warnings.warn('resource_tracker: There appear to be %d '\n",
            "in its log: RuntimeError: no CPU attention for head_dim=16",
        ),
    ],
    ids=["no exception", "an advice", "chained", "vllm"],
)
def test_the_cause_is_quoted(log, text, quoted):
    """The last exception says more than what an engine writes when it ends; one that refers to the cause above says nothing."""
    append(log, text.encode())
    assert explain_failure("died", log)[0] == f"died; {quoted}; log: {log}"


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


def test_a_line_without_end_is_not_kept(log):
    """An engine may write gigabytes without the end of a line; the next line is found nevertheless."""
    phases = PhaseReader(log, MARKERS)
    for _ in range(50):
        append(log, b"x" * 100_000)
        assert phases.read() == []
        assert len(phases._partial_line) <= logs.LINE_BYTES_MAX
    append(log, b"\nstartup complete\nLoading weights took 3 s\n")
    assert [phase.name for phase in phases.read()] == ["up", "loaded"]


def test_a_large_log_is_read_in_parts(log, monkeypatch):
    monkeypatch.setattr(logs, "READ_BYTES_MAX", 10)
    phases = PhaseReader(log, MARKERS)
    append(log, b"Loading weights took 3 s\nstartup complete\n")
    assert [phase.name for _ in range(6) for phase in phases.read()] == ["loaded", "up"]


def test_no_part_of_a_key_is_quoted(log, monkeypatch):
    """A line is cut after the keys are out of it: of half a key nobody could tell that it is one."""
    key = "planted-0123456789-0123456789"
    monkeypatch.setenv("MY_API_KEY", key)
    for before in range(logs.QUOTE_CHARACTERS - len(key), logs.QUOTE_CHARACTERS):
        append(log, b"x" * before + key.encode() + b"\n")
        assert "planted" not in logs.explain_failure("it ended", log)[0]
