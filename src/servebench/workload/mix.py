"""The workload `mix`: requests of several workloads, mixed by weight."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Annotated, Any, cast

from annotated_types import Ge, Le

from servebench.config.validate import check_section
from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.protocol.kinds.table import api_problems
from servebench.registry.registry import registry
from servebench.util.errors import ConfigError
from servebench.workload.build.seeding import generator

INHERITED = ("seed", "api", "temperature", "cache")
OF_PARTS = ("input_tokens", "output_tokens", "exact_output")
OF_ALL = ("adapters", "adapter_skew", "images", "priorities", "body", "headers")
"""Keys that only parts have an effect with, and those that only the mix has."""
Weight = Annotated[float, Ge(0), Le(1e9)]


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
    _parts: dict[str, Workload] | None = None

    def check(self) -> list[str]:
        """Report missing parts, invalid weights, and what the parts report."""
        try:
            weights = self._weights()
            parts = self._workloads()
        except ConfigError as error:
            return list(error.faults)
        faults = [
            f"workload.{key}: mix takes it from its parts; leave it out and use workload.parts.NAME.{key}"
            for key in OF_PARTS
            if getattr(self.settings, key)
        ]
        for name in weights:
            faults += _of_part(name, parts[name].check())
        return faults

    def notes(self) -> list[str]:
        """Return what the parts say of their data."""
        return [note for name in self._weights() for note in self._workloads()[name].notes()]

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests. Raises ConfigError when a part does."""
        weights = self._weights()
        rng = generator(self.settings.seed, f"{stream}/mix")
        drawn = rng.choices(list(weights), list(weights.values()), k=count)
        supply: dict[str, Iterator[Request]] = {}
        for name in dict.fromkeys(drawn):
            part, own = self._workloads()[name], f"{stream}-{name}"
            try:
                supply[name] = iter(part.requests(drawn.count(name), stream=own, tokenizer=tokenizer))
            except ConfigError as error:
                raise ConfigError(_of_part(name, error.faults)) from error
        return [next(supply[name]) for name in drawn]

    def _weights(self) -> dict[str, float]:
        """Return the weights of the parts that have one, in the order of their names."""
        parts = sorted(self._workloads().items())
        weights = {name: weight for name, part in parts if (weight := getattr(part.settings, "weight", 1.0))}
        if not weights:
            raise ConfigError(
                "workload.parts is empty; set e.g. workload.parts.unique.weight=3 workload.parts.sharegpt.weight=1"
            )
        return weights

    def _workloads(self) -> dict[str, Workload]:
        """Return the workloads of the parts. Raises ConfigError for an unknown workload or key."""
        if self._parts is None:
            faults, found = [], {}
            for name, keys in self.settings.parts.items():
                try:
                    found[name] = self._part(name, keys)
                except ConfigError as error:
                    faults += error.faults
            if faults:
                raise ConfigError(faults)
            self._parts = found
        return self._parts

    def _part(self, name: str, keys: Mapping[str, Any]) -> Workload:
        kind = keys.get("workload", name)
        if kind == self.name:
            raise ConfigError(f"workload.parts.{name}: a mix cannot contain another mix; list its parts here")
        try:
            workload: type[Workload] = registry().find("workload", str(kind))
        except ConfigError as error:
            raise ConfigError(f"workload.parts.{name}: {error}") from error
        path = f"workload.parts.{name}"
        for key in ("name", *OF_ALL):
            if key in keys:
                raise ConfigError(f"{path}.{key}: a part cannot set it; use workload.{key} for the whole mix")
        plain = {key: getattr(self.settings, key) for key in INHERITED} | {**keys, "name": kind}
        settings, problems = check_section(path, plain, {path: _part_type(cast("Hashable", workload.settings_type))})
        if faults := [problem.text for problem in problems] or api_problems(f"{path}.api", settings.api):
            raise ConfigError(faults)
        return workload(settings)


def _of_part(name: str, faults: Sequence[str]) -> list[str]:
    return [fault.replace("workload.", f"workload.parts.{name}.") for fault in faults]


@cache
def _part_type(base: Hashable) -> Any:
    """Return the settings of a workload with the keys that only parts have."""
    own = [("weight", Weight, 1.0), ("workload", str | None, None)]
    return make_dataclass("PartSettings", own, bases=(base,), frozen=True, kw_only=True)  # type: ignore[arg-type]
