"""Calls of tools: what is right, how an error is named, and how calls are read from a server."""

import json
from collections import Counter

import pytest

from servebench.contracts.quality import Endpoint, ItemAnswer
from servebench.contracts.settings import QualitySettings
from servebench.quality.ask import ask
from servebench.quality.scorers.tool_calls import ToolCallScorer, judge_calls, same_value
from servebench.util.errors import ConfigError

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS = {"weather": SCHEMA, "stop": {}}
OSLO = {"name": "weather", "arguments": {"city": ["Oslo"], "days": [3, None]}}
ROME = {"name": "weather", "arguments": {"city": ["Rome", "Roma"], "days": [None]}}


def call(name="weather", **arguments):
    return {"name": name, "arguments": json.dumps(arguments)}


@pytest.mark.parametrize(
    ("calls", "expected", "error", "measures"),
    [
        ([call(city="Oslo")], [OSLO], None, (True, True, True, None)),
        ([call(city="oslo ", days=3)], [OSLO], None, (True, True, True, None)),
        ([call(city="Roma"), call(city="Oslo")], [OSLO, ROME], None, (True, True, True, None)),
        ([], [OSLO], "no_call", (None, False, None, None)),
        ([call("stop")], [OSLO], "wrong_name", (True, False, None, None)),
        ([call("other")], [OSLO], "wrong_name", (False, False, None, None)),
        ([call(city="Oslo"), call(city="Oslo")], [OSLO], "wrong_count", (True, False, None, None)),
        ([call(city="Oslo", days="3")], [OSLO], "wrong_schema", (False, True, False, None)),
        ([call(days=3)], [OSLO], "wrong_schema", (False, True, False, None)),
        ([{"name": "weather", "arguments": '{"city": "Os'}], [OSLO], "wrong_schema", (False, True, False, None)),
        ([call(city="Bergen")], [OSLO], "wrong_value", (True, True, False, None)),
        ([call(city="Rome", days=1)], [ROME], "wrong_value", (True, True, False, None)),
        ([call(city="Oslo"), call(city="Oslo")], [OSLO, ROME], "wrong_value", (True, True, False, None)),
        ([{"name": "stop", "arguments": ""}], [{"name": "stop", "arguments": {}}], None, (True, True, True, None)),
        ([], [], None, (None, None, None, True)),
        ([call(city="Oslo")], [], "unexpected_call", (True, None, None, False)),
    ],
)
def test_calls_are_judged(calls, expected, error, measures):
    names = ("schema_accuracy", "tool_selection", "argument_accuracy", "irrelevance_detection")
    found, measured = judge_calls(calls, expected, SCHEMAS)
    assert found == error
    assert tuple(measured.get(name) for name in names) == measures


@pytest.mark.parametrize(
    ("found", "accepted", "same"),
    [
        ("The keys!", "the keys", True), ("18:30", "18.30", True), ("a", "b", False), ("?", "!", False), (5, 5.0, True),
        (True, 1, False), ("5", 5, False), (["a", "B"], ["A", "b"], True), (["a"], ["a", "b"], False), (None, None, True),
        ("", "?", False), ({"a": 1}, {"a": 1.0}, True),
    ],
)  # fmt: skip
def test_which_values_are_the_same(found, accepted, same):
    assert same_value(found, accepted) is same


def test_the_shipped_items_have_a_right_answer():
    scorer = ToolCallScorer()
    items = scorer.items(scorer.source, 1000, 0)
    kinds = Counter(item.task for item in items)
    assert min(kinds[one] for one in ("simple", "multiple", "parallel", "irrelevance")) >= 8
    for item in items:
        calls = right_calls(item)
        grade = scorer.grade(item, ItemAnswer(item_id=item.item_id, text="", calls=calls))
        assert grade.correct is True, item.item_id
        other = () if calls else [{"name": item.body["tools"][0]["function"]["name"], "arguments": "{}"}]
        assert scorer.grade(item, ItemAnswer(item_id=item.item_id, text="", calls=other)).correct is False
        assert (len(item.body["tools"]) > 1) == (item.task != "simple")


def right_calls(item):
    """Return the calls that an item expects, in the reverse order, with what may be left out left out."""
    return [
        {
            "name": one["name"],
            "arguments": json.dumps({key: values[0] for key, values in one["arguments"].items() if None not in values}),
        }
        for one in reversed(json.loads(item.expected))
    ]


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "expected": []},
        {"question": "?", "tools": TOOLS},
        {"question": " ", "tools": TOOLS, "expected": []},
        {"question": "?", "tools": TOOLS, "expected": [{"name": "other", "arguments": {}}]},
        {"question": "?", "tools": TOOLS, "expected": [{"name": "weather", "arguments": {"city": "Oslo"}}]},
        {"question": "?", "tools": [{"function": {"name": "x", "parameters": {"type": 1}}}], "expected": []},
    ],
)
def test_rows_that_are_no_questions_are_rejected(row, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(ConfigError, match=r"row 0 of .*own\.jsonl"):
        ToolCallScorer().items(path, 1, 0)


def test_it_needs_a_kind_with_messages():
    assert ToolCallScorer(QualitySettings(name="tool_calls", api="completions")).check()
    assert not ToolCallScorer().check()


def test_calls_are_read_from_chats(serve):
    """From an answer without content too; a call in the text is none."""

    def answer(connection, request):
        body = request.json()
        assert body["tools"]
        called = {
            "tool_calls": [{"type": "function", "function": right_calls(items[body["messages"][0]["content"]])[0]}]
        }
        return 200, {"choices": [{"message": {"role": "assistant", **called}, "finish_reason": "tool_calls"}]}

    def says(connection, request):
        return 200, {"choices": [{"message": {"content": '{"name": "get_weather"}'}, "finish_reason": "stop"}]}

    scorer = ToolCallScorer()
    items = {item.prompt: item for item in scorer.items(scorer.source, 1000, 0) if item.task == "simple"}
    for script, error in ((answer, None), (says, "no_call")):
        endpoint = Endpoint(base_url=serve(script).base_url, model="m")
        for item, one in zip(items.values(), ask(list(items.values()), endpoint, concurrency=2), strict=True):
            assert one.error is None
            assert scorer.grade(item, one).detail["error_type"] == error
