"""Where a study's runs are done: `hydra/launcher` and its keys, checked like everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from servebench.config.faults import Fault, did_you_mean, one_line, show
from servebench.contracts.cluster import LAUNCHERS, ClusterSettings
from servebench.util.errors import ConfigError

KEY = "hydra.launcher"
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def launcher_of(config: DictConfig) -> tuple[ClusterSettings | None, list[Fault]]:
    """The launcher that a composed config asks for; null for Hydra's own `basic`: one run after another, here."""
    try:
        node = OmegaConf.select(config, KEY)
        found = OmegaConf.to_container(node, resolve=True, throw_on_missing=False) if node is not None else {}
    except OmegaConfBaseException as error:
        return None, [Fault(f"{KEY}: {one_line(error)}", "value", KEY)]
    assert isinstance(found, dict)
    plain = {str(key): value for key, value in found.items()}
    if not plain or plain.get("_target_") == BASIC:
        return None, []
    return _checked(plain)


def launcher_from_dict(stored: Mapping[str, Any]) -> ClusterSettings | None:
    """The launcher of a stored study; null for one that ran here. Raises ConfigError."""
    if not stored:
        return None
    settings, faults = _checked(dict(stored))
    if faults:
        raise ConfigError([fault.text for fault in faults])
    return settings


def _checked(plain: dict[str, Any]) -> tuple[ClusterSettings | None, list[Fault]]:
    kind = LAUNCHERS.get(str(plain.get("name")))
    if kind is None:
        asked = plain.get("name") or plain.get("_target_")
        line = f"hydra/launcher: {show(asked)} is none of servebench's; known are basic, {', '.join(sorted(LAUNCHERS))}"
        return None, [Fault(line, "value", KEY)]
    try:
        return TypeAdapter(kind).validate_json(json.dumps(plain, default=str), strict=True), []
    except ValidationError as error:
        return None, [_told(dict(problem), plain, kind) for problem in error.errors(include_url=False)]


def _told(problem: dict[str, Any], plain: dict[str, Any], kind: type[ClusterSettings]) -> Fault:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        from dataclasses import fields

        known = [item.name for item in fields(kind)]
        return Fault(f"{KEY}.{path}: unknown key; {did_you_mean(path, known)}", "key", f"{KEY}.{path}")
    value: Any = plain
    for part in problem["loc"]:
        value = value.get(part) if isinstance(value, dict) else value
    return Fault(f"{KEY}.{path}: {show(value)} is not allowed: {problem['msg'].lower()}", "value", f"{KEY}.{path}")
