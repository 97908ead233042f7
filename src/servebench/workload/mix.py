"""The workload `mix`: requests of several workloads, mixed by weight."""

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
from servebench.workload.build.seeding import generator

INHERITED = ("seed", "api", "temperature", "cache")
OWN = ("weight", "workload")


@dataclass(frozen=True, kw_only=True)
class MixSettings(WorkloadSettings):
    """`parts` are the workloads by name, each with its `weight` (default 1; 0 leaves it out) and any keys of its own.
    A part with another name sets its workload with `workload`. Seed, api, temperature and cache are inherited from the
    mix, unless a part sets them; the default of `exact_output` is each workload's own."""

    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class MixWorkload(Workload):
    """Draws the part of each request with a probability proportional to its weight; a part's requests keep their order."""

    name = "mix"
    settings: MixSettings
    settings_type = MixSettings

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__(settings)
        self._parts: dict[str, Workload] | None = None

    def check(self) -> list[str]:
        """Report missing parts, invalid weights, and what the parts report."""
        try:
            weights = self._weights()
            parts = self._workloads()
        except ConfigError as error:
            return list(error.faults)
        faults = [
            f"workload.{key}: mix takes it from its parts; set it to null and use workload.parts.NAME.{key}"
            for key in ("input_tokens", "output_tokens")
            if getattr(self.settings, key) is not None
        ]
        for name in weights:
            faults += [fault.replace("workload.", f"workload.parts.{name}.") for fault in parts[name].check()]
        return faults

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests. Raises ConfigError when a part does."""
        weights = self._weights()
        rng = generator(self.settings.seed, f"{stream}/mix")
        drawn = rng.choices(list(weights), list(weights.values()), k=count)
        supply = {
            name: iter(
                self._workloads()[name].requests(drawn.count(name), stream=f"{stream}-{name}", tokenizer=tokenizer)
            )
            for name in dict.fromkeys(drawn)
        }
        return [next(supply[name]) for name in drawn]

    def _weights(self) -> dict[str, float]:
        """Return the weights of the parts that have one, in the order of their names."""
        weights: dict[str, float] = {}
        for name, keys in sorted(self.settings.parts.items()):
            weight = keys.get("weight", 1)
            if isinstance(weight, bool) or not isinstance(weight, int | float) or weight < 0:
                raise ConfigError(f"workload.parts.{name}.weight={weight} must be a number, 0 or more")
            if weight:
                weights[name] = float(weight)
        if not weights:
            raise ConfigError(
                "workload.parts is empty; set e.g. workload.parts.unique.weight=3 workload.parts.sharegpt.weight=1"
            )
        return weights

    def _workloads(self) -> dict[str, Workload]:
        """Return the workloads of the parts. Raises ConfigError for an unknown workload or key."""
        if self._parts is None:
            self._parts = {name: self._part(name, self.settings.parts[name]) for name in self._weights()}
        return self._parts

    def _part(self, name: str, keys: Mapping[str, Any]) -> Workload:
        kind = keys.get("workload", name)
        if kind == self.name:
            raise ConfigError(f"workload.parts.{name}: a mix cannot contain another mix; list its parts here")
        try:
            workload: type[Workload] = registry().find("workload", str(kind))
        except ConfigError as error:
            raise ConfigError(f"workload.parts.{name}: {error}") from error
        plain = {key: getattr(self.settings, key) for key in INHERITED}
        plain |= {key: value for key, value in keys.items() if key not in OWN}
        plain["name"] = kind
        try:
            settings = TypeAdapter(workload.settings_type).validate_json(json.dumps(plain), strict=True)
        except ValidationError as error:
            raise ConfigError(_key_errors(name, error, workload.settings_type)) from error
        return workload(settings)


def _key_errors(part: str, error: ValidationError, settings_type: type[WorkloadSettings]) -> list[str]:
    """Return a line for each invalid key of a part."""
    by_key: dict[str, list[Any]] = {}
    for one in error.errors(include_url=False):
        by_key.setdefault(str(one["loc"][0]) if one["loc"] else "", []).append(one)
    lines = []
    for key, errors in by_key.items():
        path = f"workload.parts.{part}.{key}"
        if errors[0]["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            known = sorted([*OWN, *(one.name for one in fields(settings_type) if one.name != "name")])
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            lines.append(f"{path}: unknown key; {hint}")
        else:
            reasons = ", or ".join(one["msg"].lower().replace("input should", "it should") for one in errors)
            lines.append(f"{path}: {errors[0]['input']!r} is not allowed: {reasons}")
    return lines
