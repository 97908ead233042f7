"""Recorded arrivals and lengths with synthesised prompts."""

import gzip
import json
import re
from functools import partial
from typing import Any

import pytest

from servebench.load.plan.traces import read_arrivals
from servebench.util.errors import ConfigError
from servebench.workload.agent_trace import AgentTraceWorkload
from servebench.workload.sources.trace_files import TraceRow, trace_rows
from servebench.workload.trace import TraceSettings, TraceWorkload
from support.workloads import requests_of, workload_of

BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
1106,ChatGPT,0,0,0,Conversation log
45,GPT-4,87,230,317,API log
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51,120,10
"""


asked = partial(requests_of, TraceWorkload)


def mooncake(folder, *rows):
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return str(path)


def common(one, other):
    """The beginning that two texts share."""
    return one[: next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)]


def test_burst_gpt(tmp_path):
    """Seconds from the first request, in order, without the failures."""
    path = tmp_path / "burst.csv"
    path.write_text(BURST)
    assert trace_rows(str(path)) == (TraceRow(0, 472, 18), TraceRow(40, 87, 230))


def test_azure(tmp_path):
    """Dates of seven decimals and none."""
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    rows = trace_rows(str(path))
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [(374, 44), (396, 109), (120, 10)]
    assert [row.arrival_s for row in rows] == pytest.approx([0, 4.314579, 4.31941], abs=1e-5)


@pytest.mark.parametrize(("name", "sign"), [("azure.csv", ";"), ("azure.csv", "\t"), ("azure.TSV.gz", "\t")])
def test_other_signs_between_columns_and_a_packed_trace(tmp_path, name, sign):
    path = tmp_path / name
    data = AZURE.replace(",", sign).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert [row.input_tokens for row in trace_rows(str(path))] == [374, 396, 120]
    assert read_arrivals(str(path)) == pytest.approx([0, 4.314579, 4.31941], abs=1e-5)


@pytest.mark.parametrize(
    "moments",
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.509930+00:00"),
        ("2024-05-10 00:00:00.009930", "2024-05-10 00:00:01.509930"),
        ("2024-05-10T00:00:00.010Z", "2024-05-10T00:00:01.510Z"),
        ("2024-05-10 00:00:00.0099301", "2024-05-10 00:00:01.5099301"),
        ("2024-05-10 02:00:00.25+02:00", "2024-05-09 19:00:01.75-05:00"),
        ("100.25", "101.75"),
    ],
)
def test_azure_arrivals_whatever_the_decimals(tmp_path, moments):
    """The file of 2024 has six decimals and an offset; a moment that is missing leaves its request out."""
    path = tmp_path / "azure.csv"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"{moment},10,5" for moment in moments)]
    path.write_text("\n".join([*lines, ",10,5"]))
    assert [row.arrival_s for row in trace_rows(str(path))] == pytest.approx([0, 1.5], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "t.jsonl",
            '{"timestamp": 0, "input_length": 99999999999, "output_length": 1}',
            "line 1: input_length has the value '99999999999'; token counts",
        ),
        (
            "t.jsonl",
            '{"timestamp": 0, "input_length": 1e999, "output_length": 1}',
            "line 1: input_length has the value",
        ),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n0,3,99999999999\n", "value '99999999999'; token counts"),
    ],
)
def test_a_length_that_no_model_has_is_named(tmp_path, name, text, told):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=told):
        trace_rows(str(tmp_path / name))


def test_bailian(tmp_path):
    """Seconds and blocks of 16 tokens, in lines that otherwise look like Mooncake's."""
    path = tmp_path / "qwen.jsonl"
    row = {"chat_id": 159, "parent_chat_id": -1, "type": "text", "turn": 1, "input_length": 37, "output_length": 9}
    path.write_text("".join(json.dumps({**row, "timestamp": t, "hash_ids": [t, 7, 8]}) + "\n" for t in (61, 62.5)))
    assert [(row.arrival_s, row.input_tokens) for row in trace_rows(str(path))] == [(0, 37), (1.5, 37)]
    assert read_arrivals(str(path)) == [0, 1.5]
    assert TraceWorkload(TraceSettings(name="trace", path=str(path))).block_tokens() == 16


def test_what_is_left_out_is_said(tmp_path):
    """Failures of the recorded service, and what is too long; nothing where all is sent."""
    path = mooncake(tmp_path, (0, 100, 5, []), (1, 0, 5, []), (2, 90, 0, []), (3, 400, 5, []))
    (note,) = workload_of(TraceWorkload, path=path, max_input_tokens=200).notes()
    assert re.findall(r"\d+", note.removeprefix(path)) == ["2", "1"]
    assert workload_of(TraceWorkload).notes() == []


def test_lengths_and_arrivals_are_the_traces(any_tokenizer, text_of):
    """Every request of the shipped trace: exact input, output as recorded, at its time."""
    requests = asked(any_tokenizer, 30)
    rows = trace_rows("builtin")[:30]
    assert any_tokenizer.count([text_of(request) for request in requests]) == [row.input_tokens for row in rows]
    assert [(r.prompt_tokens, r.output_tokens, r.arrival_s) for r in requests] == [
        (row.input_tokens, row.output_tokens, row.arrival_s) for row in rows
    ]


def test_equal_blocks_are_equal_text_and_others_are_not(pieces, text_of, tmp_path):
    """Two prompts share as many tokens as leading blocks, and differ right after."""
    path = mooncake(tmp_path, (0, 100, 5, [1, 2, 3]), (1, 100, 5, [1, 2, 4]), (2, 90, 5, [1, 5, 6]), (3, 70, 5, [9]))
    texts = [text_of(r) for r in asked(pieces, 4, path=path, block_tokens=40)]
    assert pieces.count(texts) == [100, 100, 90, 70]
    shared = [common(texts[0], text) for text in texts[1:]]
    assert [pieces.count([part])[0] for part in shared] == pytest.approx([80, 40, 0], abs=4)
    again = [text_of(r) for r in asked(pieces, 2, path=path, block_tokens=40)]
    assert again == texts[:2]


def test_a_trace_says_the_size_of_its_blocks(tmp_path):
    """The last word counts, a setting more."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": n, "input_length": 90, "output_length": 5, "hash_ids": [n], "block_size": 40 + n}
        for n in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for own, size in ((None, 42), (64, 64)):
        assert TraceWorkload(TraceSettings(name="trace", path=str(path), block_tokens=own)).block_tokens() == size
    path.write_text(json.dumps({**rows[0], "block_size": "x"}))
    trace_rows.cache_clear()
    with pytest.raises(ConfigError, match="block_size"):
        trace_rows(str(path))


def test_the_last_block_is_shared_where_it_is_the_same(pieces, text_of, tmp_path):
    """A part of a block is the beginning of that block, also where the other prompt goes on."""
    path = mooncake(tmp_path, (0, 60, 5, [1, 2]), (1, 60, 5, [1, 2]), (2, 120, 5, [1, 2, 3]))
    first, second, third = (text_of(r) for r in asked(pieces, 3, path=path, block_tokens=40))
    assert first == second
    assert third.startswith(first)


def test_cold_streams_and_laps_share_nothing(pieces, text_of, tmp_path):
    """Cold: each stream has its own blocks. A second lap has others, too, and comes later."""
    path = mooncake(tmp_path, (0, 60, 5, [1]), (3000, 60, 5, [1]))
    cold = [asked(pieces, 4, stream, path=path, block_tokens=40, cache="cold") for stream in ("c1-0", "c2-0")]
    starts = [text_of(request)[:14] for requests in cold for request in requests]
    assert len(set(starts)) == 4
    assert [request.arrival_s for request in cold[0]] == [0, 3, 6, 9]
    warm = [asked(pieces, 2, stream, path=path, block_tokens=40, cache="warm") for stream in ("c1-0", "c2-0")]
    assert text_of(warm[0][0])[:80] == text_of(warm[1][0])[:80]


def test_a_trace_of_one_moment_takes_time(pieces, tmp_path):
    """Else no number of requests would fill a load of some seconds."""
    path = mooncake(tmp_path, (7, 60, 5, []), (7, 60, 5, []))
    assert [request.arrival_s for request in asked(pieces, 5, path=path)] == [0, 0, 1, 1, 2]


def test_scale_and_limit(pieces, tmp_path):
    """Lengths are scaled, then limited."""
    path = mooncake(tmp_path, (0, 400, 40, [1]), (1, 4000, 40, [1, 2]))
    requests = asked(pieces, 2, path=path, length_scale=0.5, max_input_tokens=300)
    assert [(r.prompt_tokens, r.output_tokens) for r in requests] == [(200, 20)] * 2


def test_mistakes(pieces, tmp_path):
    """Each a line that says what to do."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"timestamp": 1}\n')
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    for path, said in ((bad, "line 1: no lengths"), (other, "columns: a, b"), (empty, "the file is empty")):
        with pytest.raises(ConfigError, match=said):
            asked(pieces, 1, path=str(path))
    with pytest.raises(ConfigError, match="leaves no request"):
        asked(pieces, 1, max_input_tokens=1)
    keys: list[dict[str, Any]] = [{"path": "x.txt"}, {"path": "x.csv"}, {"input_tokens": 5}, {"length_scale": 0.1}]
    for one in keys:
        assert len(TraceWorkload(TraceSettings(name="trace", **one)).check()) == 1
    assert TraceWorkload(TraceSettings(name="trace")).check() == []


AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def two_at(*times):
    return "\n".join(f'{{"timestamp": {time}, "input_length": 5, "output_length": 5}}' for time in times)


HOSTILE = {
    "negative.csv": f"{AZURE_HEAD}2023-11-16 18:17:03,-5,10\n",
    "huge.csv": f"{AZURE_HEAD}2023-11-16 18:17:03,{10**30},10\n",
    "digits.csv": f"{AZURE_HEAD}2023-11-16 18:17:03,{'1' * 5000},10\n",
    "infinite.csv": f"{AZURE_HEAD}2023-11-16 18:17:03,inf,10\n",
    "fraction.csv": f"{AZURE_HEAD}2023-11-16 18:17:03,5.5,10\n",
    "zero byte.csv": f"{AZURE_HEAD}2023-11-16 18:17:03,5\0,10\n",
    "one of many.csv": f"{AZURE_HEAD}0,5,5\n1,-5,5\n2,5,5\n",
    "exponent.csv": f"{AZURE_HEAD}0,5,5\n1,1e308,5\n",
    "late.csv": f"{AZURE_HEAD}0,5,5\n2e308,5,5\n",
    "long line.csv": f"{AZURE_HEAD}0,{'9' * 1_000_000},5\n1,5,5\n",
    "negative.jsonl": '{"timestamp": 0, "input_length": -5, "output_length": 5}\n' + two_at("0"),
    "years.csv": f"{AZURE_HEAD}9999-12-31 23:59:59,5,5\n0001-01-01 00:00:00,5,5\n",
    "quotes.csv": AZURE_HEAD + '"' * 1_000_001,
    "columns.csv": ",".join("c" * 100_000 for _ in range(10)) + "\n1\n",
    "empty.csv": "",
    "far.jsonl": two_at("0", "1e15"),
    "further.jsonl": two_at("0", "1e308"),
    "before.jsonl": two_at("-1e15", "0"),
    "endless.jsonl": '{"timestamp": Infinity, "input_length": 5, "output_length": 5}',
    "digits.jsonl": '{"timestamp": 0, "input_length": ' + "9" * 5000 + ', "output_length": 5}',
    "deep.jsonl": "[" * 200_000,
    "brackets.jsonl": "{" * (3 << 20),
    "list.jsonl": "[1]",
    "null.jsonl": "null",
    "text.jsonl": '"timestamp"',
    "blocks.jsonl": '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [[1]]}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_trace_is_one_short_line(tmp_path, name):
    (tmp_path / name).write_text(HOSTILE[name])
    with pytest.raises(ConfigError, match=r"workload\.path=") as caught:
        trace_rows(str(tmp_path / name))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 5000
    assert "set_int_max_str_digits" not in str(caught.value)


@pytest.mark.parametrize("workload", [TraceWorkload, AgentTraceWorkload])
def test_the_least_scale_that_a_message_names_works(workload):
    def faults(scale):
        return workload(workload.settings_type(name=workload.name, path="builtin", length_scale=scale)).check()

    (line,) = faults(0.01)
    least = float(line.partition("set it to ")[2].split()[0])
    assert faults(least) == []
    assert faults(least / 1.1) != []
