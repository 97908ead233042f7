"""Settings as words of the command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def overrides(group: str, settings: Mapping[str, Any]) -> list[str]:
    """`GROUP.KEY=VALUE` for each setting, values as Hydra writes them."""
    return [f"{group}.{key}={hydra(value)}" for key, value in settings.items()]


def hydra(value: Any) -> str:
    """Plain data in Hydra's grammar: keys stand bare, text is quoted."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{hydra(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(hydra(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)
