"""Whether a text is JSON that fits a schema."""

from typing import Any

import pytest

from servebench.util.json_schema import compliance

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "parsed", "valid"),
    [
        ('{"n": 1}', True, True),
        (' \n{"n": 1}\n', True, True),
        ('{"n": 1.5}', True, False),
        ('{"n": 1, "m": 2}', True, False),
        ("{}", True, False),
        ("[1]", True, False),
        ('{"n": 1', False, False),
        ('```json\n{"n": 1}\n```', False, False),
        ('{"n": 1} that is it', False, False),
        ('{"n": NaN}', False, False),
        ("", False, False),
        ("[" * 100_000, False, False),
    ],
)
def test_compliance(text, parsed, valid):
    found = compliance(text, SCHEMA)
    assert (found.parsed, found.valid) == (parsed, valid)
    assert (found.reason is None) == valid


def test_the_reason_names_the_place():
    assert compliance('{"n": "x"}', SCHEMA).reason == "$.n: 'x' is not of type 'integer'"
