"""Which events carry generated content, in an answer that is still arriving."""

import json

import pytest

from servebench.protocol.answer import FirstContent
from servebench.protocol.kinds.openai import ChoicesScan


def first_content(body):
    content = FirstContent(ChoicesScan())
    content.feed(body.encode())
    content.finish()
    return content


def delta(**fields):
    return json.dumps({"choices": [{"delta": fields}]})


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (delta(content="a"), True),
        (delta(reasoning="a"), True),
        (delta(reasoning_content="a"), True),
        (delta(tool_calls=[{"function": {"name": "f"}}]), True),
        (delta(tool_calls=[{"function": {"arguments": "{"}}]), True),
        (delta(tool_calls=[{"id": 1}]), False),
        ('{"choices": [{"delta": {}, "token_ids": [5]}]}', True),
        ('{"choices": [{"delta": {}, "token_ids": []}]}', False),
        ('{"choices": [{"text": "a"}]}', True),
        ('{"choices": [{"message": {"content": "a"}}]}', True),
        (delta(role="assistant", content=None), False),
        (delta(content=""), False),
        ('{"choices": [{"text": ""}]}', False),
        ('{"choices": [], "usage": {"completion_tokens": 3}}', False),
        ("[DONE]", False),
        ("", False),
        (": ping", False),
        (delta(content=[{"type": "text", "text": "a"}]), True),
        ("[1]", False),
        ('{"choices": "many"}', False),
        ('{"choices": [null, {"delta": "x"}]}', False),
    ],
)
def test_what_counts_as_content(data, content):
    """Text, reasoning, tool calls and token ids do; roles, empty deltas, usage, and strange JSON do not."""
    for body in (data, f"data: {data}\n\n"):
        assert first_content(body).arrived is content


def test_the_first_error_is_kept():
    assert first_content('data: {"error": {"message": "full"}}\n\ndata: {"error": "later"}\n\n').error == "full"
