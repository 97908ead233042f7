"""Rows of every shape that people have, in files of every usual form, and what is wrong with a bad one."""

import gzip
import json

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servebench.contracts.request import Message
from servebench.util.errors import ConfigError
from servebench.workload.sources import dataset
from servebench.workload.sources.dataset import FieldNames, Row, dataset_faults, load_dataset_rows, row_of


def turn(who, what):
    return {"from": who, "value": what}


def said(role, what, **more):
    return {"role": role, "content": what, **more}


def row(*messages, turns=(1,), **more):
    return Row(tuple(Message(*one) for one in messages), turns, **more)


TALK = [turn("human", "Hi?"), turn("gpt", "Hello.")]
HELLO = row(("user", "Hi?"), ("assistant", "Hello."))
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
QUESTION = row(("user", "Q"))

ROWS = {
    "sharegpt": ({"id": "1", "conversations": TALK}, HELLO),
    "system first": (
        {"conversations": [turn("system", "Be."), *TALK]},
        row(("system", "Be."), ("user", "Hi?"), ("assistant", "Hello."), turns=(2,)),
    ),
    "answer first": ({"conversations": [turn("gpt", "..."), *TALK]}, HELLO),
    "other names": ({"conversations": [turn("Human", "Hi?"), turn("bard", "Hello.")]}, HELLO),
    "every turn": (
        {"messages": [said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d")]},
        row(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), turns=(1, 3)),
    ),
    "the last turn has no answer": (
        {"messages": [said("user", "a"), said("assistant", "b"), said("user", "c")]},
        row(("user", "a"), ("assistant", "b"), ("user", "c"), turns=(1, 3)),
    ),
    "two questions are one turn": (
        {"messages": [said("user", "a"), said("user", "b")]},
        row(("user", "a"), ("user", "b"), turns=(2,)),
    ),
    "calls of tools": (
        {
            "messages": [
                said("user", "a"),
                said("assistant", None, tool_calls=CALL),
                said("tool", "42", tool_call_id="1"),
                said("assistant", "b"),
            ],
            "tools": TOOLS,
        },
        Row(
            (
                Message("user", "a"),
                Message("assistant", "", {"tool_calls": CALL, "content": None}),
                Message("tool", "42", {"tool_call_id": "1"}),
                Message("assistant", "b"),
            ),
            (1, 3),
            None,
            {"tools": TOOLS},
        ),
    ),
    "parts of text": ({"messages": [said("user", [{"type": "text", "text": "Q"}])]}, QUESTION),
    "JSON in a table": ({"messages": json.dumps([said("user", "Q")])}, QUESTION),
    "JSON in a table, indented": (
        {"messages": json.dumps([said("user", "Q")], indent=1), "tools": " " + json.dumps(TOOLS, indent=1)},
        row(("user", "Q"), extra={"tools": TOOLS}),
    ),
    "roles in capitals": (
        {"messages": [said("User", "Q"), said("Assistant", "A")]},
        row(("user", "Q"), ("assistant", "A")),
    ),
    "no talk but a prompt": ({"conversations": [], "prompt": "Q"}, QUESTION),
    "a prompt of messages": ({"prompt": [said("user", "Q")]}, QUESTION),
    "a prompt that is JSON": ({"prompt": '{"a": 1}'}, row(("user", '{"a": 1}'))),
    "nobody asks": ({"conversations": [turn("gpt", "Hello.")]}, None),
    "no turns": ({"conversations": []}, None),
    "prompt": ({"prompt": "Q", "response": "A"}, row(("user", "Q"), ("assistant", "A"))),
    "question": ({"question": "Q", "answer": "A"}, row(("user", "Q"), ("assistant", "A"))),
    "instruction": ({"instruction": "Q", "output": "A"}, row(("user", "Q"), ("assistant", "A"))),
    "instruction about a text": (
        {"instruction": "Q", "input": "T", "output": "A"},
        row(("user", "Q\n\nT"), ("assistant", "A")),
    ),
    "instruction about nothing": ({"instruction": "Q", "input": "", "context": None}, QUESTION),
    "instruction in a context": ({"instruction": "Q", "context": "T"}, row(("user", "Q\n\nT"))),
    "a question is no instruction": ({"question": "Q", "context": "T"}, QUESTION),
    "no prompt, no instruction, but a talk": ({"messages": [said("user", "Q")], "input": "T"}, QUESTION),
    "text": ({"text": "Q"}, QUESTION),
    "prompt before text": ({"text": "T", "prompt": "Q"}, QUESTION),
    "an answer that is no text": ({"question": "Q", "answer": {"text": ["A"]}}, QUESTION),
    "system of its own": ({"system": "S", "prompt": "Q"}, row(("system", "S"), ("user", "Q"), turns=(2,))),
    "length": ({"prompt": "Q", "max_tokens": 7}, row(("user", "Q"), output_tokens=7)),
    "length in a table": ({"prompt": "Q", "output_tokens": "7"}, row(("user", "Q"), output_tokens=7)),
    "no length in a table": ({"prompt": "Q", "output_tokens": ""}, QUESTION),
    "batch": (
        {
            "custom_id": "1",
            "url": "/v1/chat/completions",
            "body": {
                "model": "gpt",
                "messages": [said("user", "a"), said("assistant", "b"), said("user", "c")],
                "max_tokens": 5,
                "temperature": 0.5,
            },
        },
        row(("user", "a"), ("assistant", "b"), ("user", "c"), turns=(3,), output_tokens=5, extra={"temperature": 0.5}),
    ),
    "batch of completions": ({"url": "/v1/completions", "body": {"prompt": "Q"}}, QUESTION),
}


@pytest.mark.parametrize("name", ROWS)
def test_row_of(name):
    value, expected = ROWS[name]
    assert row_of(value) == expected


BAD = {
    "no object": (["prompt"], "list"),
    "nothing to ask": ({"foo": 1}, "foo"),
    "blank": ({"prompt": " \n"}, "prompt"),
    "a number": ({"prompt": 3}, "prompt"),
    "no role": ({"messages": ["hi"]}, r"messages\[0\]"),
    "a wrong role": ({"messages": [said("usr", "hi")]}, "'usr'"),
    "no text": ({"messages": [said("user", "a"), said("assistant", None)]}, r"messages\[1\]"),
    "a picture": ({"messages": [said("user", [{"type": "image_url", "image_url": {}}])]}, "not text"),
    "no list": ({"messages": {"a": 1}}, "dict"),
    "no length": ({"prompt": "Q", "max_tokens": "many"}, "'many'"),
    "half a token": ({"prompt": "Q", "max_tokens": 0.5}, "0.5"),
    "another route": ({"url": "/v1/embeddings", "body": {"input": "Q"}}, "/v1/embeddings"),
    "an empty batch": ({"url": "/v1/chat/completions", "body": {}}, "messages"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_row_that_cannot_be_sent(name):
    value, said = BAD[name]
    with pytest.raises(ValueError, match=said):
        row_of(value)


def test_fields_of_other_names():
    """A name that is given counts alone, and a row without it is an error."""
    names = FieldNames(prompt="q", answer="a", output_tokens="n", system="s")
    value = {"q": "Q", "a": "A", "n": 3, "s": "S", "prompt": "other"}
    assert row_of(value, names) == row(("system", "S"), ("user", "Q"), ("assistant", "A"), turns=(2,), output_tokens=3)
    with pytest.raises(ValueError, match=r"'a' \(workload.fields.answer\)"):
        row_of({"q": "Q", "n": 3, "s": "S"}, names)


def test_half_a_character_can_be_sent():
    """JSON may escape a lone surrogate, which no UTF-8 can carry: it becomes the replacement character."""
    found = row_of(json.loads(r'{"prompt": "cut \ud83d", "answer": "\ud83d\ude00"}'))
    assert found is not None
    assert [one.content for one in found.messages] == ["cut �", "\U0001f600"]
    assert orjson.dumps(found.messages)


def two(key="prompt"):
    return [{key: "one"}, {key: "two"}]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


FILES = {
    "array": ("a.json", json.dumps(two())),
    "array, indented": ("a.json", json.dumps(two(), indent=2)),
    "array, first in the line": ("a.json", "\n\n " + json.dumps(two())),
    "array behind a mark": ("a.json", "\ufeff" + json.dumps(two())),
    "array within an object": ("a.json", json.dumps({"version": "[1]", "data": two()})),
    "two splits": ("a.json", json.dumps({"train": two()[:1], "test": two()[1:]})),
    "lines called json": ("a.json", lines(two())),
    "capital suffix": ("a.JSON", json.dumps(two())),
    "lines": ("a.jsonl", lines(two("text"))),
    "lines called ndjson": ("a.ndjson", lines(two("question"))),
    "lines without the last end": ("a.jsonl", lines(two()).rstrip()),
    "lines of Windows": ("a.jsonl", lines(two()).replace("\n", "\r\n")),
    "blank lines": ("a.jsonl", "\n" + lines(two()).replace("\n", "\n \n")),
    "lines behind a mark": ("a.jsonl", "\ufeff" + lines(two())),
    "table": ("a.csv", 'id,prompt\n1,"one"\n2,two\n'),
    "table of Windows": ("a.csv", "\ufeffprompt\r\none\r\n\r\ntwo\r\n"),
    "table with tabs": ("a.tsv", "id\tprompt\n1\tone\n2\ttwo\n"),
    "table with tabs called csv": ("a.csv", "id\tprompt\n1\tone\n2\ttwo\n"),
    "table with semicolons": ("a.csv", 'id;prompt\r\n"1,5";one\r\n2;two\r\n'),
    "table with commas called tsv": ("a.tsv", "id,prompt\n1,one\n2,two\n"),
    "table of pandas, with an index": ("a.csv", ",prompt\n0,one\n1,two\n"),
    "spaces before names": ("a.csv", "id, prompt\n1,one\n2,two\n"),
    "semicolons in a name": ("a.csv", 'prompt,"a;b;c"\none,1\ntwo,2\n'),
}
PACKERS = {".gz": gzip.compress, ".zst": lambda data: pa.compress(data, "zstd", asbytes=True)}


@pytest.mark.parametrize("name", FILES)
def test_text_files(tmp_path, name):
    """All rows are read, in order."""
    path = tmp_path / FILES[name][0]
    path.write_text(FILES[name][1], encoding="utf-8", newline="")
    assert dataset_faults(str(path)) == []
    assert [one.messages[0].content for one in load_dataset_rows(str(path)).rows] == ["one", "two"]


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("name", ["array", "lines called json", "lines of Windows", "table with semicolons"])
def test_packed_files(tmp_path, name, suffix):
    path = tmp_path / (FILES[name][0] + suffix)
    path.write_bytes(PACKERS[suffix](FILES[name][1].encode()))
    assert dataset_faults(str(path)) == []
    assert [one.messages[0].content for one in load_dataset_rows(str(path)).rows] == ["one", "two"]


@pytest.mark.parametrize("suffix", PACKERS)
def test_packed_files_that_are_cut_or_too_large(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"a.jsonl{suffix}"
    whole = PACKERS[suffix](lines(two()).encode() * 1000)
    path.write_bytes(whole[:-9])
    with pytest.raises(ConfigError, match="cannot be read: truncated"):
        load_dataset_rows(str(path))
    monkeypatch.setattr(dataset, "DATASET_BYTES_MAX", len(whole) + 100)
    path.write_bytes(whole)
    with pytest.raises(ConfigError, match="unpacks to more than"):
        load_dataset_rows(str(path))


def test_one_conversation_is_one_row(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"id": 1, "conversations": TALK}))
    assert load_dataset_rows(str(path)).rows == (HELLO,)


def test_conversations_in_which_nobody_asks_are_counted(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"conversations": []}, {"conversations": TALK}, {"conversations": TALK[1:]}]))
    found = load_dataset_rows(str(path))
    assert (found.rows, found.silent) == ((HELLO,), 2)


@pytest.mark.parametrize("rows", [[{"conversations": TALK}], [{"prompt": "Hi?", "answer": "Hello."}]])
def test_parquet(tmp_path, rows):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert load_dataset_rows(str(path)).rows == (HELLO,)


WRONG = {
    "a broken line": ("a.jsonl", '{"prompt": "x"}\n{"prompt": \n{"prompt": "y"}\n', ":2:"),
    "a broken last line": ("a.jsonl", lines(two()) + '{"prompt": "thr', ":3:"),
    "where a line breaks": ("a.jsonl", '{"prompt": "thr\n', "column 12"),
    "a row without a prompt": ("a.jsonl", lines(two()) + '\n{"promt": "x"}\n', ":4:"),
    "a line that is no object": ("a.jsonl", "3\n", ":1:"),
    "a line that nests for ever": ("a.jsonl", lines(two()) + "[" * 200_000, ":3:"),
    "a line in another encoding": ("a.jsonl", lines(two()).encode() + b'{"prompt": "\xe9"}\n', ":3:"),
    "array, cut within a row": ("a.json", json.dumps(two(), indent=1)[:-12], ":6:"),
    "array, cut after a comma": ("a.json", json.dumps(two())[:-1] + ",", ":1:"),
    "array with another value": ("a.json", '[\n{"prompt": "x"},\nnull]', "row 2"),
    "object cut short": ("a.json", '{\n"data": [', ":2:"),
    "no JSON": ("a.json", "none at all", ":1:"),
    "array that nests for ever": ("a.json", "[" * 200_000, ":1:"),
    "nothing": ("a.json", "", ":1:"),
    "no rows": ("a.json", "[]", "no rows"),
    "an empty file": ("a.jsonl", "", "no rows"),
    "UTF-16": ("a.json", '[{"prompt": "x"}]'.encode("utf-16"), "UTF-8"),
    "a value too many": ("a.csv", "id,prompt\n1,one\n2,two,three\n", ":3:"),
    "a value too few": ("a.csv", "id,prompt\n1,one\n2\n", ":3:"),
    "a quote without an end": ("a.csv", 'id,prompt\n1,"one\n', ":"),
    "no column": ("a.csv", "id,promt\n1,one\n", ":2:"),
    "no Parquet": ("a.parquet", b"PAR1 but not really, no PAR1", "Parquet"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_bad_line_is_named(tmp_path, name):
    """In one line: the file, the number, and what can be read."""
    file, content, place = WRONG[name]
    path = tmp_path / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load_dataset_rows(str(path))
    (fault,) = caught.value.faults
    assert f"workload.dataset={path}" in fault
    assert place in fault.partition(file)[2]
    assert "\n" not in fault


def test_only_silence(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"conversations": []}]))
    with pytest.raises(ConfigError, match="1 conversations"):
        load_dataset_rows(str(path))


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
        load_dataset_rows(name)


def test_home(tmp_path, monkeypatch):
    """A tilde is the user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.jsonl").write_text(lines(two()))
    assert dataset_faults("~/mine.jsonl") == []
    assert len(load_dataset_rows("~/mine.jsonl").rows) == 2


def test_a_file_that_may_not_be_read(tmp_path):
    """What the system refuses is told as one line, with the system's reason."""
    path = tmp_path / "a.jsonl"
    # reading this fails for everybody, root too: the first page of a process is not mapped
    path.symlink_to("/proc/self/mem")
    with pytest.raises(ConfigError, match="cannot be read: input/output error"):
        load_dataset_rows(str(path))
