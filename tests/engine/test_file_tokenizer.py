"""Tokenizer files that are broken or mean harm: one line each, and nothing of them is left."""

import json
import os

import psutil
import pytest

from servebench.engine import file_tokenizer
from servebench.engine.tokenize import FileTokenizer
from servebench.util.errors import EngineError
from support.waiting import words_of

TEXTS = ["one two a", "a" * 60 + "!", "b c d " * 100, "\ud800"]
WHOLE = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "vocab": {chr(97 + index): index for index in range(26)}, "merges": []},
}


def regex(pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {**WHOLE, "pre_tokenizer": split}


def model(**keys):
    return {**WHOLE, "model": {**WHOLE["model"], **keys}}


GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
HOSTILE = {
    "empty": b"",
    "random": bytes(range(256)) * 100,
    "deep": b"[" * 200_000,
    "null": b"null",
    "a slow expression": regex("(a+)+$"),
    "a broken expression": regex("(((("),
    "a charsmap that aborts": {**WHOLE, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
    "a charsmap that panics": {**WHOLE, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "merges that panic": model(merges=["a b"]),
    "a negative id": model(vocab={"a": -1}),
    "no unknown token": {**WHOLE, "model": {"type": "WordLevel", "unk_token": "x", "vocab": {}}},
    "text that grows": {**WHOLE, "normalizer": {"type": "Sequence", "normalizers": [GROWS] * 4}},
    "a device": "/dev/zero",
}


def write(path, content):
    if isinstance(content, str):
        path.symlink_to(content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_line(tmp_path, monkeypatch, name):
    """Aborts, panics, endless loops and bombs end in an EngineError that names the file."""
    monkeypatch.setattr(file_tokenizer, "TIME_MIN_S", 20.0)
    path = write(tmp_path / "tokenizer.json", HOSTILE[name])
    with pytest.raises(EngineError, match=r"tokenizer\.json: ") as caught:
        FileTokenizer(path).count(TEXTS[:3])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    del caught
    assert [child for child in psutil.Process().children() if "file_tokenizer" in " ".join(words_of(child))] == []


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(EngineError, match="not a regular file"):
        FileTokenizer(tmp_path / "tokenizer.json")


def test_settings_of_training_do_not_change_the_counts(tmp_path):
    """Many files have the truncation and the padding that their model was trained with."""
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 512}, "direction": "Right", "pad_to_multiple_of": 8, "pad_id": 0}
    padding |= {"pad_type_id": 0, "pad_token": "a"}
    plain = FileTokenizer(write(tmp_path / "plain.json", WHOLE))
    trained = FileTokenizer(write(tmp_path / "trained.json", {**WHOLE, "truncation": truncation, "padding": padding}))
    counts = plain.count(TEXTS[:3])
    assert max(counts) > 3
    assert trained.count(TEXTS[:3]) == counts


def test_batches_keep_the_order(tmp_path, monkeypatch):
    monkeypatch.setattr(file_tokenizer, "BATCH_CHARACTERS", 10)
    tokenizer = FileTokenizer(write(tmp_path / "tokenizer.json", WHOLE))
    assert tokenizer.count(["a" * length for length in (3, 0, 40, 1, 9, 10, 2)]) == [3, 0, 40, 1, 9, 10, 2]


def test_half_a_surrogate_does_not_end_the_process(tmp_path):
    tokenizer = FileTokenizer(write(tmp_path / "tokenizer.json", WHOLE))
    with pytest.raises(EngineError, match=r"tokenizer\.json: "):
        tokenizer.count(TEXTS)
    assert tokenizer.count(["abc"]) == [3]
