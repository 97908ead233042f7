"""Which settings to try: the stock settings first, then rules of thumb, recipes, proposals, and random draws. Pure.

Draws are random because published tuners found that enough: a plain random search tied a staged one on most cards, and a
predictor of throughput ranked the truly best 15th of 25 in the median. The race, not the proposal, decides.
"""

import math
import operator
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from servebench.analysis.limits.roofline import positive
from servebench.config.tune_space import TuneParameter, TuneSpace
from servebench.contracts.stored import is_number, mapping, value_at
from servebench.contracts.tuning import STOCK, Candidate, RefusedCandidate
from servebench.contracts.weights import kv_token_bytes, weights_gb
from servebench.store.layout import slug
from servebench.util.figures import number

CHANGES_MAX = 4
"""The most parameters of a draw that differ from the stock settings: a few changes can be explained, many cannot."""
DRAWS_MAX = 200
"""Draws for each candidate that is wanted, before a space counts as used up."""
GIGA = 1e9
KV_BYTES = {"fp8": 1.0, "q8_0": 1.06, "q5_1": 0.75, "q4_0": 0.56, "int8": 1.0}
KV_KEYS = ("engine.extra_args.kv-cache-dtype", "engine.extra_args.cache_type_k", "engine.extra_args.cache-type-k")

MEMORY_KEYS = ("engine.max_num_seqs", "engine.gpu_memory_fraction")
"""Settings of which less takes less memory, the most important one first."""


@dataclass(kw_only=True)
class CandidateList:
    """The candidates of one engine, the stock settings first, and what was refused before a launch. `config` is the stock
    configuration, `size` the number of settings that a whole grid would have."""

    space: TuneSpace
    config: Mapping[str, Any]
    size: int
    candidates: list[Candidate] = field(default_factory=list)
    refused: list[RefusedCandidate] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set, init=False)

    def add(self, candidate: Candidate) -> None:
        """Add a candidate, unless it is there already."""
        settings = {key: value for key, value in candidate.settings.items() if value != value_at(self.config, key)}
        key = repr(sorted(settings.items(), key=lambda item: item[0]))
        if key in self._seen:
            return
        self._seen.add(key)
        changed = with_settings(self.config, settings)
        forbidden = (rule.why for rule in self.space.forbidden if holds(rule.when, changed))
        problem = (next(forbidden, None) or memory_problem(changed)) if settings else None
        index = len(self.candidates)
        name = STOCK if not settings else candidate.name or f"t{index:02d}"
        if any(one.name == name for one in self.candidates):
            name = f"{name} {index}"
        made = replace(candidate, name=name, settings=settings)
        if problem is None:
            self.candidates.append(made)
        elif candidate.origin != "sampled":
            self.refused.append(RefusedCandidate(candidate=made, why=problem))


Parameters = Mapping[str, TuneParameter]
"""Parameters by their config keys."""


def free_parameters(space: TuneSpace, fixed: Collection[str], only: Sequence[str] = ()) -> Parameters:
    """Return the parameters to vary: those that the user has not `fixed` on the command line, and of `only` if it names some."""
    own = space.parameters.items()
    return {key: one for key, one in own if key not in fixed and (not only or key in only)}


def rule_candidates(space: TuneSpace, config: Mapping[str, Any]) -> list[Candidate]:
    """Return the space's rules of thumb that hold for this configuration."""
    named = [(one.name or f"rules[{index}]", one) for index, one in enumerate(space.rules)]
    return [space.candidate(name, "rule", one.settings) for name, one in named if holds(one.when, config)]


def make_candidates(
    space: TuneSpace,
    config: Mapping[str, Any],
    proposed: Sequence[Candidate],
    *,
    free: Parameters,
    count: int,
    seed: int,
) -> CandidateList:
    """Return at most `count` candidates of an engine with this stock `config`: stock, those proposed, then random draws.

    Settings that equal the stock ones, that were there before, or that cannot work are left out; the last are `refused`.
    """
    made = CandidateList(space=space, config=config, size=space_size(free, config))
    made.add(space.candidate(STOCK, "stock", {}))
    for one in proposed:
        if len(made.candidates) < count:
            made.add(one)
    rng = random.Random(f"{seed}/{space.engine}")
    draws = 0
    while len(made.candidates) < count and draws < DRAWS_MAX * count:
        draws += 1
        made.add(space.candidate("", "sampled", draw_settings(free, config, rng)))
    return made


def draw_settings(free: Parameters, config: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return randomly drawn changes of the stock settings."""
    settings: dict[str, Any] = {}
    if not free:
        return settings
    # in the order of the space, for a condition may name an earlier parameter
    chosen = sorted(rng.sample(range(len(free)), rng.randint(1, min(CHANGES_MAX, len(free)))))
    for key, one in (list(free.items())[index] for index in chosen):
        other = [value for value in one.values if value != value_at(config, key)]
        if other and holds(one.when, with_settings(config, settings)):
            settings[key] = rng.choice(other)
    return settings


def space_size(free: Parameters, config: Mapping[str, Any]) -> int:
    """Return how many settings a grid over the parameters that apply would have, the stock settings included."""
    applying = {key: one.values for key, one in free.items() if holds(one.when, config)}
    return math.prod(len({*map(repr, values), repr(value_at(config, key))}) for key, values in applying.items())


def take_backs(best: Candidate) -> list[Candidate]:
    """Return a candidate without each of its changes, with the name of its run. There are none for a single change: without it
    the best candidate is the stock settings."""
    if len(best.settings) < 2:
        return []
    return [
        replace(
            best,
            name=f"{best.name} without {short_key(key)}",
            run=f"{best.run}_without-{slug(short_key(key))}",
            origin="taken back",
            settings={name: value for name, value in best.settings.items() if name != key},
        )
        for key in best.settings
    ]


def distance_from_stock(settings: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[float, ...]:
    """Return how far settings are from those of a stock `config`, to be compared: the number of changes, and then what takes
    memory, of which an unknown default counts as most."""
    changed = with_settings(config, settings)
    memory = (value_at(changed, key) for key in MEMORY_KEYS)
    return (float(len(settings)), *(value if is_number(value) else math.inf for value in memory))


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as people read them: the last part of each key and its value."""
    return " ".join(f"{short_key(key)}={value_text(value)}" for key, value in settings.items()) or STOCK


def short_key(key: str) -> str:
    """Return the last part of a setting's key."""
    return re.sub(r"^engine\.((extra_args|env)\.)?", "", key)


def value_text(value: Any, *, quoted: bool = False) -> str:
    """Return a value as an override spells it, where needed `quoted` for Hydra."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{value_text(one, quoted=quoted)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(value_text(one, quoted=quoted) for one in value) + "]"
    if quoted and isinstance(value, str) and not re.fullmatch(r"[\w./-]+", value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def override_words(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return settings as words of a command line, quoted for Hydra where needed."""
    return tuple(f"{key}={value_text(value, quoted=True)}" for key, value in settings.items())


def memory_problem(config: Mapping[str, Any]) -> str | None:
    """Return why model and context cannot fit the GPUs' memory; None if they may, or if too little is known to say.

    The weights, and the keys and values of one request of `max_model_len`, must fit. Engines mean different things by the share
    of the memory that they use, so it is left out: a start that it makes impossible is a result.
    """
    room, weights, token = memory_figures(config) or (math.inf, 0.0, None)
    length = positive(mapping(config.get("engine")).get("max_model_len"))
    kept = (token or 0.0) * (length or 0.0)
    if weights > room:
        return f"the weights take {number(weights)} GB and the memory has {number(room)} GB"
    if weights + kept > room:
        return (
            f"the weights ({number(weights)} GB) and one request of engine.max_model_len={length:.0f} "
            f"({number(kept)} GB) do not fit the memory's {number(room)} GB"
        )
    return None


def memory_figures(config: Mapping[str, Any]) -> tuple[float, float, float | None] | None:
    """Return the memory of the GPUs of an engine, its weights, and the keys and values of a token (null: unknown), in GB; null if
    memory or weights are unknown."""
    model, gpu, engine = (mapping(config.get(name)) for name in ("model", "gpu", "engine"))
    memory, weights = positive(gpu.get("memory_gb")), weights_gb(model, engine)
    gpus = positive(engine.get("tensor_parallel_size")) or positive(gpu.get("count"))
    if not (memory and weights and gpus):
        return None
    layers, heads, size = (positive(model.get(name)) or 0.0 for name in ("layers", "kv_heads", "head_dim"))
    types = [str(value_at(config, key) or "") for key in KV_KEYS]
    value_bytes = next((many for name in types for word, many in KV_BYTES.items() if name.startswith(word)), 2.0)
    return memory * gpus, weights, kv_token_bytes(layers, heads, size, value_bytes) / GIGA or None


_COMPARISON = re.compile(r"(>=|<=|!=|>|<)\s*(\S+)")
_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def holds(when: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether each key of a condition of a space's YAML, such as `{gpu.memory_gb: ">= 70"}`, has the wanted value: an
    equal one, one of a list, or one that a comparison (`"> 8"`, `"< engine.max_num_seqs"`, `"!= null"`) allows. A comparison of
    size with something unknown does not hold."""
    return all(_fits(value_at(config, key), wanted, config) for key, wanted in when.items())


def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with these dotted keys set."""
    changed = dict(config)
    for key, value in settings.items():
        first, _, rest = key.partition(".")
        if not rest or rest in mapping(changed.get(first)):
            changed[first] = {**mapping(changed.get(first)), rest: value} if rest else value
        elif first == "extra_args":
            changed[first] = {**mapping(changed.get(first)), rest: value}
        else:
            changed[first] = with_settings(mapping(changed.get(first)), {rest: value})
    return changed


def _fits(value: Any, wanted: Any, config: Mapping[str, Any]) -> bool:
    if isinstance(wanted, list | tuple):
        return any(_fits(value, one, config) for one in wanted)
    found = _COMPARISON.fullmatch(wanted.strip()) if isinstance(wanted, str) else None
    if found is None:
        return bool(value == wanted)
    other = _operand(found[2], config)
    if found[1] == "!=":
        return bool(value != other)
    if not (is_number(value) and is_number(other)):
        return False
    return bool(_OPERATORS[found[1]](value, other))


def _operand(text: str, config: Mapping[str, Any]) -> Any:
    if text in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[text]
    try:
        return float(text)
    except ValueError:
        # a key of the config, or a plain word
        return value_at(config, text) if "." in text else text
