"""Tool calls: whether the engine's answer calls the right tool with the right arguments, or none where none fits.

Categories and measures are those of the Berkeley Function Calling Leaderboard (its AST evaluation and irrelevance detection);
`schema_accuracy` is that of the K2 Vendor Verifier. The items are servebench's own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from servebench.contracts.quality import Grade, Item, ItemAnswer
from servebench.protocol.kinds.table import kind_named
from servebench.quality.rows import PROMPTS, RowScorer
from servebench.util.json_schema import TEXT, compliance, object_of

MAX_TOKENS = 256
_TOOL = object_of(function=object_of(name=TEXT))
_TOOL["properties"]["function"]["properties"]["parameters"] = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
_VALUES = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
_ROW = object_of(
    question=TEXT,
    tools={"type": "array", "minItems": 1, "items": _TOOL},
    expected={"type": "array", "items": object_of(name=TEXT, arguments=_VALUES)},
)
_ROW["properties"]["category"] = TEXT
Call = Mapping[str, str]
"""The `name` of a tool and its `arguments`, a JSON text."""


def same_value(found: Any, accepted: Any) -> bool:
    """Return whether two values of an argument are the same: texts without case, spaces and punctuation, numbers by value."""
    if isinstance(found, str) and isinstance(accepted, str):
        return _letters(found) == _letters(accepted)
    if isinstance(found, list) and isinstance(accepted, list):
        return len(found) == len(accepted) and all(map(same_value, found, accepted))
    if isinstance(found, bool) != isinstance(accepted, bool):
        return False
    return bool(found == accepted)


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.casefold()) or text


def arguments_right(arguments: Mapping[str, Any], accepted: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether arguments are those that are accepted: for each name one of the values, where null means left out."""
    return arguments.keys() <= accepted.keys() and all(
        any(same_value(arguments.get(name), value) for value in values) for name, values in accepted.items()
    )


def judge_calls(
    calls: Sequence[Call], expected: Sequence[Mapping[str, Any]], schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[str | None, dict[str, bool]]:
    """Return the type of the error (None if the calls are right, in any order), and the measures that apply.

    `expected` has the `name` and the accepted `arguments` of each call, `schemas` those of the arguments of each tool.
    """
    fits = [
        one["name"] in schemas and compliance(one["arguments"] or "{}", schemas[one["name"]]).valid for one in calls
    ]
    measures = {"schema_accuracy": all(fits)} if calls else {}
    if not expected:
        return "unexpected_call" if calls else None, {**measures, "irrelevance_detection": not calls}
    selected = sorted(one["name"] for one in calls) == sorted(one["name"] for one in expected)
    measures["tool_selection"] = selected
    if not calls:
        return "no_call", measures
    if not selected:
        return "wrong_count" if len(calls) != len(expected) else "wrong_name", measures
    if not all(fits):
        return "wrong_schema", {**measures, "argument_accuracy": False}
    left = [(one["name"], json.loads(one["arguments"] or "{}")) for one in calls]
    for one in expected:
        fit = next(
            (call for call in left if call[0] == one["name"] and arguments_right(call[1], one["arguments"])), None
        )
        if fit is not None:
            left.remove(fit)
    return "wrong_value" if left else None, {**measures, "argument_accuracy": not left}


class ToolCallScorer(RowScorer):
    """Questions with tools. Rows have `question`, `tools` (as a chat has them) and `expected`: the `name` of each call, and
    under `arguments` the accepted values of each argument, with null where it may be left out. No call is expected if it is
    empty; `category` and `id` are optional.

    Thinking is cut; only calls that the server sends as calls are graded, not those in the text.
    """

    name = "tool_calls"
    method = "right tools, arguments that match their schema and the accepted values; no call where no tool fits"
    source = PROMPTS / "tool_calls.jsonl"
    row_schema = _ROW

    def check(self) -> list[str]:
        """See Scorer.check."""
        if kind_named(self.settings.api).takes_messages:
            return []
        return [f"tools are sent in a chat, and quality.api={self.settings.api} has no messages; use quality.api=chat"]

    def item(self, row: Mapping[str, Any], item_id: str) -> Item:
        """See RowScorer.item."""
        if unknown := {one["name"] for one in row["expected"]} - _schemas(row["tools"]).keys():
            raise ValueError(f"expected has a call of {min(unknown)}, which is none of its tools")
        return Item(
            item_id=item_id,
            prompt=row["question"],
            expected=json.dumps(row["expected"]),
            max_tokens=MAX_TOKENS,
            task=row.get("category"),
            body={"tools": row["tools"]},
        )

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        """See Scorer.grade. `detail` has the `error_type`, and the share of right answers of the item's category."""
        calls = list(answer.calls or ())
        expected = json.loads(item.expected)
        error, measures = judge_calls(calls, expected, _schemas(item.body["tools"]))
        in_text = error == "no_call" and any(name in answer.text for name in _schemas(item.body["tools"]))
        note = "the text names a tool: the engine may need its parser of tool calls" if in_text else error
        if error == "no_call" and answer.finish_reason == "length":
            note = f"no call in {MAX_TOKENS} tokens, where the answer was cut"
        # without a tool that fits this is irrelevance detection
        category = {f"{item.task}_accuracy": error is None} if item.task and expected else {}
        return Grade(
            correct=error is None,
            extracted=json.dumps(calls),
            note=note,
            detail={"error_type": error, **measures, **category},
        )


def _schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the schema of each tool's arguments, by the tool's name."""
    return {one["function"]["name"]: one["function"].get("parameters", {}) for one in tools}
