"""Shipped prompts, and prompts from files of every shape that people have."""

import json
import re
from importlib.resources import files

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servebench.util.errors import ConfigError
from servebench.workload.sources.prompts import (
    Prompt,
    builtin_prompts,
    builtin_rows,
    dataset_faults,
    load_prompts,
    prompt_of,
    vocabulary,
)

LICENSES = {"HumanEval": "MIT", "GSM8K": "MIT", "TruthfulQA": "Apache-2.0"}


def turn(who, what):
    return {"from": who, "value": what}


def said(role, what):
    return {"role": role, "content": what}


TALK = [turn("human", "Hi?"), turn("gpt", "Hello.")]


def test_shipped_rows():
    """Each shipped prompt has an id of its own, text, a source, and the licence of that source; none is there twice."""
    rows = builtin_rows()
    assert len({row["id"] for row in rows}) == len({row["prompt"] for row in rows}) == len(rows) == 364
    for row in rows:
        assert set(row) == {"id", "source", "license", "prompt"}
        assert row["license"] == LICENSES[row["source"]]
        assert row["prompt"].strip()


def test_shipped_sources_are_acknowledged():
    """The notice names each source, with as many prompts as there are."""
    notice = files("servebench.workload").joinpath("data", "NOTICE.md").read_text(encoding="utf-8")
    sources = [row["source"] for row in builtin_rows()]
    for source, license in LICENSES.items():
        assert re.search(rf"\[{source}\].*\| {sources.count(source)} \| {license} \|", notice)


def test_shipped_file_is_lines():
    """Every line of the file is a JSON object: nothing blank, nothing broken."""
    text = files("servebench.workload").joinpath("data", "prompts.jsonl").read_text(encoding="utf-8")
    lines = text.removesuffix("\n").split("\n")
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert [prompt.text for prompt in builtin_prompts()] == [json.loads(line)["prompt"] for line in lines]


def test_vocabulary():
    """Words are plain, sorted, and enough of them that prompts differ."""
    words = vocabulary()
    assert words == sorted(set(words))
    assert len(words) > 1000
    assert all(re.fullmatch(r"[a-z]{3,9}", word) for word in words)


ROWS = [
    ("sharegpt", {"id": "1", "conversations": TALK}, Prompt("Hi?", "Hello.")),
    ("system first", {"conversations": [turn("system", "Be."), *TALK]}, Prompt("Hi?", "Hello.")),
    ("answer first", {"conversations": [turn("gpt", "..."), *TALK]}, Prompt("Hi?", "Hello.")),
    ("user", {"conversations": [turn("user", "Hi?"), turn("bard", "Hello.")]}, Prompt("Hi?", "Hello.")),
    ("capital", {"conversations": [turn("Human", "Hi?"), turn("GPT", "Hello.")]}, Prompt("Hi?", "Hello.")),
    ("no answer", {"conversations": TALK[:1]}, Prompt("Hi?")),
    ("a second question is no answer", {"conversations": [TALK[0], turn("human", "Hm?")]}, Prompt("Hi?")),
    ("blank turn", {"conversations": [turn("human", "  "), *TALK]}, Prompt("Hi?", "Hello.")),
    ("turn without text", {"conversations": [turn("human", None), turn("human", 3), *TALK]}, Prompt("Hi?", "Hello.")),
    ("junk among turns", {"conversations": ["junk", None, 4, *TALK]}, Prompt("Hi?", "Hello.")),
    ("messages", {"messages": [said("system", "s"), said("user", "Q"), said("assistant", "A")]}, Prompt("Q", "A")),
    ("no talk but a prompt", {"conversations": [], "prompt": "P"}, Prompt("P")),
    (
        "messages in parts",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "image_url"}, 5]}]},
        Prompt("Q"),
    ),
    (
        "a picture alone",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "prompt": "P"},
        Prompt("P"),
    ),
    ("talk that is text", {"messages": "see prompt", "prompt": "P"}, Prompt("P")),
    ("talk that is a number", {"conversations": 7}, None),
    ("talk that is a mapping", {"conversations": {"a": 1}}, None),
    ("prompt", {"prompt": "P", "response": "R"}, Prompt("P", "R")),
    ("question", {"question": "Q", "answer": "A"}, Prompt("Q", "A")),
    ("instruction", {"instruction": "I", "output": "O"}, Prompt("I", "O")),
    ("text", {"text": "T"}, Prompt("T")),
    ("prompt before text", {"text": "T", "prompt": "P", "completion": "C"}, Prompt("P", "C")),
    ("answer that is no text", {"question": "Q", "answer": {"text": ["A"]}}, Prompt("Q")),
    ("blank", {"prompt": " \n"}, None),
    ("number", {"prompt": 3}, None),
    ("empty", {}, None),
    ("no mapping", ["prompt"], None),
    ("nothing", None, None),
]


@pytest.mark.parametrize(("row", "prompt"), [case[1:] for case in ROWS], ids=[case[0] for case in ROWS])
def test_prompt_of(row, prompt):
    """The first turn of a person, or the field that holds the prompt, and the answer to it."""
    assert prompt_of(row) == prompt


def test_half_a_character_can_be_sent():
    """JSON may escape a lone surrogate, which no UTF-8 can carry: it becomes the replacement character."""
    prompt = prompt_of(json.loads(r'{"prompt": "cut \ud83d", "answer": "\ud83d\ude00"}'))
    assert prompt == Prompt("cut \ufffd", "\U0001f600")
    assert orjson.dumps([prompt.text, prompt.answer])


def two(key="prompt"):
    return [{key: "one"}, {key: "two"}]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


FILES = [
    ("array", "a.json", json.dumps(two())),
    ("array, indented", "a.json", json.dumps(two(), indent=2)),
    ("array, cut within a row", "a.json", json.dumps([*two(), {"prompt": "three"}])[:-8]),
    ("array, cut after a comma", "a.json", json.dumps(two())[:-1] + ","),
    ("array, first in the line", "a.json", "\n\n " + json.dumps(two())),
    ("array behind a mark", "a.json", "\ufeff" + json.dumps(two())),
    ("array within an object", "a.json", json.dumps({"version": "[1]", "data": two()})),
    ("two splits", "a.json", json.dumps({"train": two()[:1], "test": two()[1:]})),
    ("object cut short", "a.json", json.dumps({"data": two()})[:-2]),
    ("lines called json", "a.json", lines(two())),
    ("array with rows that are none", "a.json", json.dumps([None, 3, "x", [], *two(), {}])),
    ("capital suffix", "a.JSON", json.dumps(two())),
    ("lines", "a.jsonl", lines(two("text"))),
    ("lines called ndjson", "a.ndjson", lines(two("question"))),
    ("lines without the last end", "a.jsonl", lines(two()).rstrip()),
    ("lines of Windows", "a.jsonl", lines(two()).replace("\n", "\r\n")),
    ("blank lines", "a.jsonl", "\n" + lines(two()).replace("\n", "\n \n")),
    ("broken lines", "a.jsonl", '{"prompt": \n' + lines(two()) + '{"prompt": "thr'),
    ("a line that nests for ever", "a.jsonl", "[" * 200_000 + "\n" + lines(two())),
    ("lines behind a mark", "a.jsonl", "\ufeff" + lines(two())),
    ("lines with others between", "a.jsonl", lines([[], 1, None, *two(), "x"])),
]


@pytest.mark.parametrize(("name", "text"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_text_files(tmp_path, name, text):
    """Whatever is whole in a file is read, in order."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    assert dataset_faults(str(path)) == []
    assert [prompt.text for prompt in load_prompts(str(path))] == ["one", "two"]


def test_one_conversation_is_one_prompt(tmp_path):
    """A .json that is a single row is read as such; so are lines of conversations under that suffix."""
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"id": 1, "conversations": TALK}))
    assert load_prompts(str(path)) == (Prompt("Hi?", "Hello."),)
    path = tmp_path / "b.json"
    path.write_text(lines([{"conversations": TALK}] * 2))
    assert load_prompts(str(path)) == (Prompt("Hi?", "Hello."),) * 2


@pytest.mark.parametrize(
    "rows", [[{"conversations": TALK}, {"conversations": None}], [{"prompt": "Hi?", "answer": "Hello."}]]
)
def test_parquet(tmp_path, rows):
    """Parquet with conversations or with columns of text; a null is left out."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert load_prompts(str(path)) == (Prompt("Hi?", "Hello."),)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"", "no prompts"),
        ("a.json", b"[]", "no prompts"),
        ("a.json", b"[" * 200_000, "no prompts"),
        ("a.json", b'{"a": 1}', "no prompts"),
        ("a.json", b"no json at all", "no prompts"),
        ("a.json", '[{"prompt": "x"}]'.encode("utf-16"), "no prompts"),
        ("a.jsonl", b"", "no prompts"),
        ("a.jsonl", b"\xff\xfe\x00\n\x80", "no prompts"),
        ("a.parquet", b"", "Parquet"),
        ("a.parquet", b"PAR1 but not really, no PAR1", "Parquet"),
        ("a.csv", b"prompt\nx", "file type"),
        ("a", b"x", "file type"),
    ],
)
def test_files_that_hold_nothing(tmp_path, name, content, message):
    """A file without prompts is refused in one line that names it, and what to give instead."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_prompts(str(path))
    (fault,) = caught.value.faults
    assert f"workload.dataset={path}" in fault
    assert "ShareGPT" in fault
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.json", "no such file"),
        ("missing", "file type"),
        ("folder.jsonl", "is a folder"),
        (".", "is a folder"),
        ("~nobody-of-that-name/a.json", "no such file"),
        ("", "is a folder"),
    ],
)
def test_files_that_are_not_there(tmp_path, monkeypatch, name, message):
    """A wrong path is found before anything starts, and refused again when it is read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.jsonl").mkdir()
    (fault,) = dataset_faults(name)
    assert message in fault
    with pytest.raises(ConfigError, match=message):
        load_prompts(name)


def test_home(tmp_path, monkeypatch):
    """A tilde is the user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.jsonl").write_text(lines(two()))
    assert dataset_faults("~/mine.jsonl") == []
    assert len(load_prompts("~/mine.jsonl")) == 2


def test_a_file_that_may_not_be_read(tmp_path):
    """What the system refuses is told as one line, with the system's reason."""
    path = tmp_path / "a.jsonl"
    # reading this fails for everybody, root too: the first page of a process is not mapped
    path.symlink_to("/proc/self/mem")
    with pytest.raises(ConfigError, match="cannot be read: Input/output error"):
        load_prompts(str(path))
