"""Tokens of four characters, answers that are the same every time, JSON that a schema allows."""

import json
import re
import subprocess
import sys

import pytest

from servebench.emulator.text import (
    answer_pieces,
    count_tokens,
    natural_length,
    prompt_key,
    render_chat,
    schema_pieces,
    schema_value,
)

SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 9}, "b": {"type": "number", "maximum": 1}}},
    {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 3},
    {"$defs": {"n": {"type": "object", "properties": {"v": {"const": 7}}}}, "$ref": "#/$defs/n"},
    {"anyOf": [{"type": "integer", "minimum": 5, "maximum": 5}, {"type": "string"}]},
    {"type": ["boolean", "null"]},
    {"type": "string", "pattern": "^(A|B)-[0-9]{3}[a-f]+\\d?$"},
]
EXPECTED = [
    lambda v: len(v["a"]) >= 9 and v["b"] <= 1,
    lambda v: len(v) >= 3 and set(v) <= {"x", "y"},
    lambda v: v == {"v": 7},
    lambda v: v == 5,
    lambda v: isinstance(v, bool),
    lambda v: re.search(r"^(A|B)-[0-9]{3}[a-f]+\d?$", v),
]


@pytest.mark.parametrize("index", range(len(SCHEMAS)))
def test_a_schemas_value_is_one(index):
    """Of the schema's kind, and the text of an answer is that value."""
    value = schema_value(SCHEMAS[index], 3)
    assert EXPECTED[index](value)
    assert json.loads("".join(schema_pieces(SCHEMAS[index], 3))) == value


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é" * 8, 2)])
def test_four_characters_are_a_token(text, expected):
    assert count_tokens(text) == expected


def test_answers_are_the_same_in_every_process():
    here = "".join(answer_pieces(prompt_key(1, "what?"), 30)), natural_length(prompt_key(1, "what?"))
    code = (
        "from servebench.emulator.text import *;"
        "k = prompt_key(1, 'what?'); print(''.join(answer_pieces(k, 30)), natural_length(k), sep='|')"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.rstrip("\n")
    assert there == f"{here[0]}|{here[1]}"
    assert len(here[0]) == 120
    assert answer_pieces(prompt_key(2, "what?"), 30) != answer_pieces(prompt_key(1, "what?"), 30)


def test_a_conversation_begins_like_its_earlier_turns():
    first = [{"role": "user", "content": "one"}]
    later = [
        *first,
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "3"}]},
    ]
    assert render_chat(later).startswith(render_chat(first) + "two")


def test_the_workloads_own_schemas_are_met():
    from servebench.config import compose_jobs
    from servebench.engine.tokenize import EmulatedTokenizer
    from servebench.registry.registry import registry
    from servebench.util.json_schema import compliance

    (job,) = compose_jobs(["engine=vllm", "launch=emulated", "workload=structured_json"], registry())
    workload = registry().find("workload", "structured_json")(job.settings.workload)
    requests = workload.requests(60, stream="s", tokenizer=EmulatedTokenizer())
    for request in requests:
        answered = "".join(schema_pieces(request.schema, prompt_key(0, str(request.messages))))
        assert compliance(answered, request.schema).valid
