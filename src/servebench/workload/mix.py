"""The workload `mix`: requests of several workloads, mingled by weight."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter, ValidationError

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.registry.registry import registry
from servebench.util.errors import ConfigError
from servebench.workload.salt import generator

INHERITED = ("seed", "api", "temperature", "cache")
OWN = ("weight", "workload")


@dataclass(frozen=True, kw_only=True)
class MixSettings(WorkloadSettings):
    """`parts` are the workloads by name, each with its `weight` (1 if not given; 0 leaves it out) and any keys of its own.
    A part of another name says its kind with `workload`. Seed, api, temperature and cache are the mix's, and
    `exact_output` each workload's own, unless a part says otherwise."""

    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class MixWorkload(Workload):
    """Each request is drawn from a part with a chance of its weight; within a part they keep their order."""

    name = "mix"
    settings_type = MixSettings

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__(settings)
        assert isinstance(settings, MixSettings)
        self._settings = settings
        self._parts: dict[str, Workload] | None = None

    def check(self) -> list[str]:
        """No part, a weight that is none, and what makes a part impossible."""
        try:
            weights = self._weights()
            parts = self._made()
        except ConfigError as error:
            return list(error.faults)
        faults = [
            f"workload.{key}: mix takes it from its parts; set it to null and use workload.parts.NAME.{key}"
            for key in ("input_tokens", "output_tokens")
            if getattr(self._settings, key) is not None
        ]
        for name in weights:
            faults += [fault.replace("workload.", f"workload.parts.{name}.") for fault in parts[name].check()]
        return faults

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """`count` requests. Raises ConfigError as the parts do."""
        weights = self._weights()
        rng = generator(self._settings.seed, f"{stream}/mix")
        drawn = rng.choices(list(weights), list(weights.values()), k=count)
        supply = {
            name: iter(self._made()[name].requests(drawn.count(name), stream=f"{stream}-{name}", tokenizer=tokenizer))
            for name in dict.fromkeys(drawn)
        }
        return [next(supply[name]) for name in drawn]

    def _weights(self) -> dict[str, float]:
        """The parts that take part, in the order of their names."""
        found: dict[str, float] = {}
        for name, keys in sorted(self._settings.parts.items()):
            weight = keys.get("weight", 1)
            if isinstance(weight, bool) or not isinstance(weight, int | float) or weight < 0:
                raise ConfigError(f"workload.parts.{name}.weight={weight} is no weight; give a number, 0 or more")
            if weight:
                found[name] = float(weight)
        if not found:
            raise ConfigError(
                "workload.parts: nothing is to be mixed; give e.g. workload.parts.unique.weight=3 "
                "workload.parts.sharegpt.weight=1"
            )
        return found

    def _made(self) -> dict[str, Workload]:
        """The parts, built with their settings. Raises ConfigError for a kind or a key that does not exist."""
        if self._parts is None:
            self._parts = {name: self._part(name, self._settings.parts[name]) for name in self._weights()}
        return self._parts

    def _part(self, name: str, keys: Mapping[str, Any]) -> Workload:
        kind = keys.get("workload", name)
        if kind == self.name:
            raise ConfigError(f"workload.parts.{name}: a mix of mixes is not to be had; name its parts here")
        try:
            found: type[Workload] = registry().find("workload", str(kind))
        except ConfigError as error:
            raise ConfigError(f"workload.parts.{name}: {error}") from error
        plain = {key: getattr(self._settings, key) for key in INHERITED}
        plain |= {key: value for key, value in keys.items() if key not in OWN}
        plain["name"] = kind
        try:
            settings = TypeAdapter(found.settings_type).validate_json(json.dumps(plain), strict=True)
        except ValidationError as error:
            raise ConfigError(_faults(name, error, found.settings_type)) from error
        return found(settings)


def _faults(part: str, error: ValidationError, settings_type: type[WorkloadSettings]) -> list[str]:
    """A line for each key of a part with which something is wrong."""
    told: dict[str, list[Any]] = {}
    for one in error.errors(include_url=False):
        told.setdefault(str(one["loc"][0]) if one["loc"] else "", []).append(one)
    lines = []
    for key, found in told.items():
        path = f"workload.parts.{part}.{key}"
        if found[0]["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            known = sorted([*OWN, *(one.name for one in fields(settings_type) if one.name != "name")])
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            lines.append(f"{path}: unknown key; {hint}")
        else:
            said = ", or ".join(one["msg"].lower().replace("input should", "it should") for one in found)
            lines.append(f"{path}: {found[0]['input']!r} is not allowed: {said}")
    return lines
