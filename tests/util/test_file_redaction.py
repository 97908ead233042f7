"""Files that are cleaned of secrets after they were written: whatever is cut off is finished later."""

import io
import random

import pytest

from servebench.util import file_redaction
from servebench.util.file_redaction import (
    clean_file,
    is_clean,
    mark_of,
    mark_unclean,
    redact_copy,
    traces_of,
    unclean_files,
)
from servebench.util.secret_patterns import MARK

KEY = "planted-Value-42-öé"


@pytest.fixture
def log(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder / "engine.log"


@pytest.fixture
def forgotten(monkeypatch):
    """What a process took for secret is not known to the next one."""
    monkeypatch.setattr("servebench.util.redaction._REMEMBERED", set())


def test_a_marked_file_is_clean_when_its_mark_is_gone(log, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", KEY)
    mark_unclean(log)
    assert not is_clean(log)
    assert unclean_files(log.parent.parent) == [log]
    log.write_text(f"twice {KEY} and {KEY}\nkept\r50%\rlast")
    assert clean_file(log)
    assert is_clean(log)
    assert log.read_bytes() == f"twice {MARK} and {MARK}\nkept\r50%\rlast".encode()
    assert [one.name for one in log.parent.iterdir()] == ["engine.log"]


def test_the_mark_finds_a_secret_that_is_not_known_any_more(log, monkeypatch, forgotten):
    """Whoever comes after a kill may be in a shell without the variable."""
    monkeypatch.setenv("MY_API_KEY", KEY)
    mark_unclean(log)
    monkeypatch.delenv("MY_API_KEY")
    log.write_text(f"word {KEY}, x{KEY}y\n")
    assert clean_file(log)
    assert log.read_text() == f"word {MARK}, x{MARK}y\n"


def test_the_mark_says_nothing_of_the_secret(log, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", KEY)
    mark_unclean(log)
    mark = mark_of(log)
    assert KEY not in mark.read_text()
    assert "planted" not in mark.read_text()
    assert mark.stat().st_mode & 0o077 == 0


def test_each_start_adds_its_secrets(log, monkeypatch, forgotten):
    for key in ("first-secret-value", "second-secret-value"):
        monkeypatch.setenv("MY_API_KEY", key)
        mark_unclean(log)
    monkeypatch.delenv("MY_API_KEY")
    log.write_text("first-secret-value second-secret-value")
    assert clean_file(log)
    assert log.read_text() == f"{MARK} {MARK}"


def test_a_file_that_takes_too_long_keeps_its_mark(log, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", KEY)
    mark_unclean(log)
    log.write_text(f"{KEY}\n" * 100)
    assert not clean_file(log, budget_s=-1.0)
    assert not is_clean(log)
    assert sorted(one.name for one in log.parent.iterdir()) == [mark_of(log).name, "engine.log"]
    assert clean_file(log)
    assert KEY not in log.read_text()


def test_an_interrupted_clean_up_keeps_the_mark(log, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setenv("MY_API_KEY", KEY)
    mark_unclean(log)
    log.write_text(f"{KEY}\n")
    with monkeypatch.context() as patched:
        patched.setattr(file_redaction.os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            clean_file(log)
    assert not is_clean(log)
    assert clean_file(log)
    assert KEY not in log.read_text()


def test_no_file_has_nothing_to_clean(log):
    mark_unclean(log)
    assert clean_file(log)
    assert is_clean(log)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"traces": 5}', '{"traces": [[1]], "base": 1}', "null", "9" * 5000])
def test_a_mark_that_is_none_does_no_harm(log, text):
    """It may come with the study of a stranger."""
    mark_of(log).write_text(text)
    log.write_text("password=abcdefgh\n")
    assert clean_file(log)
    assert log.read_text() == f"password={MARK}\n"


@pytest.mark.parametrize("piece", [100, 101, 128, 177])
def test_no_secret_is_cut_in_two(log, monkeypatch, piece):
    """A line without end is read in pieces, and a secret may be anywhere in it."""
    monkeypatch.setattr(file_redaction, "PIECE", piece)
    monkeypatch.setattr(file_redaction, "OVERLAP", 64)
    monkeypatch.setenv("MY_API_KEY", KEY)
    rng = random.Random(piece)
    planted = (KEY, "--api-key 'hidden one'", "password=hiddentwo", '"token": "hiddenthree"', "Bearer hiddenfour")
    for _ in range(200):
        parts = [rng.choice(planted) if rng.random() < 0.3 else "x" * rng.randrange(1, 40) for _ in range(30)]
        text = " ".join(parts)
        log.write_text(text)
        clean_file(log)
        left = log.read_text()
        assert KEY not in left
        assert "hidden" not in left
        assert left.count("x") == text.count("x")


def test_traces_are_found_in_any_place():
    rng = random.Random(1)
    values = ["".join(rng.choices("abcdefgh", k=rng.randrange(6, 60))) for _ in range(20)]
    data = rng.randbytes(3000) + values[3].encode() + rng.randbytes(500) + values[7].encode()
    wanted, base = file_redaction._wanted(traces_of(values))
    assert file_redaction._traced(data, wanted, base) == {values[3].encode(), values[7].encode()}
    assert file_redaction._traced(data[:2999], wanted, base) == set()


def test_a_copy_has_no_secrets(log):
    log.write_bytes(b"password=abcdefgh\r\n\xff\n")
    copy = io.StringIO(newline="")
    redact_copy(log, copy)
    assert copy.getvalue() == f"password={MARK}\r\n�\n"
