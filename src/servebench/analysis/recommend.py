"""Which run is best for which use, by rules that the user can edit, and how sure that is.

A run's score for a use case is one number at one load level. The lead of the winner over each rival has an interval:
stretches of requests are drawn again on both sides (a throughput from its own error), and an allowance for what two starts of
one engine differ by is added, as in `compare`. With several rivals each interval is widened (Bonferroni), so that "best of
all" is as sure as it says. "No clear winner" is a full answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from servebench.analysis import cost as money
from servebench.analysis.compare import (
    RESAMPLES,
    START_SD,
    STRETCHES,
    STRETCHES_MIN,
    ComparedPoint,
    pooled_spread,
    resampled,
    statistic,
)
from servebench.analysis.fairness import SettingDifference, keys_told, way_out
from servebench.analysis.slo import SloLimits, good, slo_point
from servebench.contracts.point_row import PointRow
from servebench.util.errors import ConfigError

Floats = NDArray[np.float64]
Outcome = Literal["winner", "no clear winner", "only one", "none qualifies", "not measured"]

LOWER_IS_BETTER = ("_ms", "cost_", "energy_", "cold_start")
SOURCES = {
    "output_throughput_tok_s": ("throughput_tok_s", None),
    **{
        f"{name}_ms_p{percent}": (f"{name}_ms", float(percent))
        for name in ("ttft", "tpot", "e2e")
        for percent in (50, 90, 95, 99)
    },
}
UNITS = {
    "_tok_s": "tok/s",
    "_ms": "ms",
    "_req_s": "req/s",
    "usd_per_mtok": "$/M tokens",
    "usd_per_mgood": "$/M good requests",
    "j_per_token": "J/token",
    "s_per_w": "tok/s/W",
    "cold_start": "s",
}
COSTS = {"cost_usd_per_mtok": "output_throughput_tok_s", "cost_usd_per_mgood": "goodput_req_s"}
"""What a million of costs money: the rate at which it comes."""
HINTS = {
    "cost_usd_per_mtok": "no run knows what its machine costs: name it (gpu=h100), or set gpu.count and gpu.price_usd_per_hour",
    "cost_usd_per_mgood": "no run has both a price (gpu.price_usd_per_hour) and an SLO that says which requests are good "
    "(slo=interactive)",
    "energy_j_per_token": "the power drawn could not be read: it takes an NVIDIA GPU, or a CPU whose RAPL counters may be read",
}
"""What to do where no run has the metric at all."""
SLO_FACTORS = (0.25, 0.5, 2.0, 4.0)
CONFIDENCE = 0.95
MEASURES = ("best", "within_slo", "lowest_load", "cold_start")


@dataclass(frozen=True, kw_only=True)
class UseCase:
    """A rule. Fields as in recommend.yaml."""

    name: str
    title: str
    measure: str
    metric: str = "cold_start"
    workloads: tuple[str, ...] | None = None
    limits: SloLimits = field(default_factory=SloLimits)
    own_slo: bool = False
    max_load: float | None = None
    require: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    across: tuple[str, ...] = ()

    @property
    def lower_is_better(self) -> bool:
        """Whether a small score is a good one."""
        return any(part in self.metric for part in LOWER_IS_BETTER)

    @property
    def unit(self) -> str:
        """Of the score."""
        return next((unit for part, unit in UNITS.items() if part in self.metric), "")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """All rules; margins are shares."""

    use_cases: tuple[UseCase, ...]
    margin: float = 0.05
    once_margin: float = 0.25


@dataclass(frozen=True, kw_only=True)
class RankedLevel:
    """One load level of an entrant: its row of points.csv, and what the intervals are drawn from (repeats pooled)."""

    row: PointRow
    label: str
    load: float
    verdict: str
    doubts: tuple[str, ...]
    samples: tuple[ComparedPoint, ...]


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A run that takes part. `own_limits` is the SLO it was given; `manifest` serves the fairness check only."""

    name: str
    engine: str
    model: str
    gpu: str
    workload: str
    levels: tuple[RankedLevel, ...]
    cold_start_s: float | None = None
    own_limits: SloLimits | None = None
    price_usd_per_hour: float | None = None
    gpu_count: int = 0
    manifest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Score:
    """What an entrant reached. `at` is the load level, `slo_at` the highest load that met the SLO."""

    entrant: Entrant
    value: float
    at: str = ""
    level: RankedLevel | None = None
    slo_at: str | None = None
    doubtful: bool = False
    metric: str = "cold_start"

    @cached_property
    def draws(self) -> Floats | None:
        """The score of each resample; None when it was measured once or there is too little to draw from."""
        return None if self.level is None else _draws(self.metric, self.level, self.entrant)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """95 %; None when it was measured once."""
        if self.draws is None:
            return None
        low, high = np.quantile(self.draws, [0.025, 0.975]).tolist()
        return low, high


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What is recommended for a use case among the entrants of one set-up.

    `lead` is the winner's (or, without one, the leader's) lead over the runner-up as a share of the runner-up, with its
    interval. `missing` tells why entrants have no score, `changes` what would change the answer.
    """

    use_case: UseCase
    group: str
    outcome: Outcome
    ranking: tuple[Score, ...] = ()
    lead: float | None = None
    lead_low: float | None = None
    lead_high: float | None = None
    why: str = ""
    missing: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    quality: tuple[str, ...] = ()
    """Who of the ranking is less right, where that is no chance."""

    @property
    def winner(self) -> Score | None:
        """The winner, if there is one."""
        return self.ranking[0] if self.outcome == "winner" else None


def rules_text() -> str:
    """The rules that are shipped, as YAML."""
    return (resources.files("servebench.analysis") / "recommend.yaml").read_text(encoding="utf-8")


def load_rules(path: Path | None = None) -> Rules:
    """The rules of a file, or those that are shipped. Raises ConfigError for a file that is none."""
    import yaml

    where = str(path) if path else "recommend.yaml"
    try:
        text = path.read_text(encoding="utf-8") if path else rules_text()
        data = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"--rules {where} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--rules {where} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or not isinstance(data.get("use_cases"), dict):
        raise ConfigError(f"--rules {where} has no use_cases; 'servebench recommend --show-rules' prints an example")
    faults: list[str] = []
    cases = [
        _use_case(name, rule, f"--rules {where}: use_cases.{name}", faults) for name, rule in data["use_cases"].items()
    ]
    margins = {key: data[key] for key in ("margin", "once_margin") if key in data}
    faults += [
        f"--rules {where}: {key}={value} is no share between 0 and 1"
        for key, value in margins.items()
        if not isinstance(value, (int, float)) or not 0 <= value < 1
    ]
    if faults:
        raise ConfigError(faults)
    return Rules(use_cases=tuple(case for case in cases if case is not None), **margins)


KEYS = ("title", "workloads", "measure", "metric", "slo", "own_slo", "max_load", "require", "across")


def _use_case(name: str, rule: Any, where: str, faults: list[str]) -> UseCase | None:
    if not isinstance(rule, dict):
        faults.append(f"{where} is no mapping")
        return None
    before = len(faults)
    faults += [f"{where}: unknown key '{key}'; it takes {', '.join(KEYS)}" for key in rule if key not in KEYS]
    if rule.get("measure") not in MEASURES:
        faults.append(f"{where}: measure={rule.get('measure')} is none of {', '.join(MEASURES)}")
    if rule.get("measure") != "cold_start" and not isinstance(rule.get("metric"), str):
        faults.append(f"{where}: metric names no column of points.csv")
    slo = rule.get("slo") or {}
    known = ("ttft_ms", "tpot_ms", "e2e_ms", "attainment")
    wrong = not isinstance(slo, dict) or [
        k for k, v in slo.items() if k not in known or not isinstance(v, (int, float))
    ]
    if wrong:
        faults.append(f"{where}: slo takes numbers for {', '.join(known)}")
    elif rule.get("measure") == "within_slo" and not any(key in slo for key in known[:3]):
        faults.append(f"{where}: measure=within_slo needs a limit in slo")
    if len(faults) > before:
        return None
    return UseCase(
        name=str(name),
        title=str(rule.get("title") or name),
        measure=rule["measure"],
        metric="cold_start" if rule["measure"] == "cold_start" else rule["metric"],
        workloads=tuple(rule["workloads"]) if rule.get("workloads") else None,
        limits=SloLimits(**slo),
        own_slo=bool(rule.get("own_slo")),
        max_load=rule.get("max_load"),
        require=rule.get("require") or {},
        across=tuple(rule.get("across") or ()),
    )


Unfair = Callable[[Entrant, Entrant, Sequence[str]], Sequence[SettingDifference]]
"""What two entrants have unequal that matters, but for the groups named."""


def recommend(
    entrants: Sequence[Entrant], rules: Rules, *, unfair: Unfair, with_doubtful: bool = False
) -> list[Recommendation]:
    """An answer for each use case and each set-up (model, GPU, workload) that was measured. Pure."""
    answers: list[Recommendation] = []
    for case in rules.use_cases:
        fit = [one for one in entrants if _takes_part(one, case)]
        if not fit:
            wanted = ", ".join(case.workloads or ())
            why = f"no run of workload {wanted}; measure it: servebench -m engine=... workload={(case.workloads or ('',))[0]}"
            answers.append(Recommendation(use_case=case, group="", outcome="not measured", why=why))
            continue
        hint = HINTS.get(case.metric)
        if hint and not any(level.row.get(case.metric) is not None for one in fit for level in one.levels):
            answers.append(Recommendation(use_case=case, group="", outcome="not measured", why=hint))
            continue
        groups: dict[str, list[Entrant]] = {}
        for one in fit:
            groups.setdefault(_group(one, case), []).append(one)
        answers += [
            _answer(case, name, group, rules=rules, unfair=unfair, with_doubtful=with_doubtful)
            for name, group in groups.items()
        ]
    return answers


def _takes_part(entrant: Entrant, case: UseCase) -> bool:
    return case.workloads is None or any(fnmatchcase(entrant.workload, pattern) for pattern in case.workloads)


def _group(entrant: Entrant, case: UseCase) -> str:
    parts = [entrant.model, entrant.gpu, entrant.workload]
    kept = [part for part, kind in zip(parts, ("model", "gpu", "workload"), strict=True) if kind not in case.across]
    return " · ".join(kept)


def _answer(
    case: UseCase, group: str, entrants: Sequence[Entrant], *, rules: Rules, unfair: Unfair, with_doubtful: bool
) -> Recommendation:
    missing: list[str] = []
    own = {one.own_limits for one in entrants}
    if case.own_slo and len(own) == 1 and (limits := own.pop()) is not None:
        case = replace(case, limits=limits)
    ranking = _ranking(case, entrants, with_doubtful, missing)
    facts: dict[str, Any] = {"use_case": case, "group": group, "missing": tuple(missing)}
    if not ranking:
        return Recommendation(outcome="none qualifies", why="no run has a score here", **facts,
                      changes=tuple(_if_doubtful(case, entrants, None) if not with_doubtful else []))  # fmt: skip
    changes = tuple(_changes(case, entrants, ranking, with_doubtful=with_doubtful, margin=rules.margin))
    if len(ranking) == 1:
        why = f"only {ranking[0].entrant.name} has a score, so there is nothing to compare it with"
        return Recommendation(outcome="only one", ranking=ranking, why=why, changes=changes, **facts)
    lead, low, high, why = _lead(ranking, rules)
    apart = {
        rival.entrant.name: [d for d in unfair(ranking[0].entrant, rival.entrant, case.across) if d.matters]
        for rival in ranking[1:]
    }
    if any(apart.values()):
        told = "; ".join(f"{name}: {keys_told(found)}" for name, found in apart.items() if found)
        every = {one.key: one for found in apart.values() for one in found}
        why = f"settings that matter are unequal ({told}); {way_out(every.values())}"
    return Recommendation(
        outcome="no clear winner" if why else "winner",
        ranking=ranking,
        lead=lead,
        lead_low=low,
        lead_high=high,
        why=why,
        changes=changes,
        **facts,
    )


def _ranking(case: UseCase, entrants: Sequence[Entrant], with_doubtful: bool, missing: list[str]) -> tuple[Score, ...]:
    """The scores, best first. Several runs of one entrant name stay apart: each is a row."""
    scores = []
    for one in entrants:
        found = _score(case, one, with_doubtful)
        if isinstance(found, str):
            missing.append(f"{one.name}: {found}")
        else:
            scores.append(found)
    sign = 1 if case.lower_is_better else -1
    return tuple(sorted(scores, key=lambda score: sign * score.value))


def _score(case: UseCase, one: Entrant, with_doubtful: bool) -> Score | str:
    """An entrant's score, or why it has none."""
    if case.measure == "cold_start":
        return (
            Score(entrant=one, value=one.cold_start_s) if one.cold_start_s is not None else "no cold start was measured"
        )
    allowed = ("valid", "doubtful") if with_doubtful else ("valid",)
    fit = [level for level in one.levels if level.verdict in allowed]
    if not fit:
        codes = ", ".join(dict.fromkeys(code for level in one.levels for code in level.doubts))
        return f"no valid point ({codes})" if codes else "no valid point"
    narrowed = _narrowed(case, fit)
    if isinstance(narrowed, str):
        return narrowed
    fit, slo_at = narrowed
    valued = [(value, level) for level in fit if (value := _value(case.metric, level)) is not None]
    if not valued:
        return f"it has no {case.metric}"
    value, level = (min if case.lower_is_better else max)(valued, key=lambda pair: pair[0])
    return Score(
        entrant=one,
        value=value,
        at=level.label,
        level=level,
        slo_at=slo_at,
        doubtful=level.verdict != "valid",
        metric=case.metric,
    )


def _narrowed(case: UseCase, fit: Sequence[RankedLevel]) -> tuple[list[RankedLevel], str | None] | str:
    """The levels that the rule looks at, and the SLO point; or why there is none."""
    fit = [level for level in fit if _meets(level.row, case.require)]
    if not fit:
        return f"no point meets {', '.join(case.require)}"
    if case.measure == "within_slo":
        shares = [(level.load, attained(level.samples, case.limits)) for level in fit]
        index = slo_point(shares, case.limits)
        if index is None:
            lowest, share = min(zip(fit, (share for _, share in shares), strict=True), key=lambda pair: pair[0].load)
            return f"not even the lowest load ({lowest.label}) meets {case.limits.words()}: {100 * share:.3g} % do"
        return [level for level in fit if level.load <= fit[index].load], fit[index].label
    if case.measure == "lowest_load":
        lowest = min(fit, key=lambda level: level.load)
        if case.max_load is not None and lowest.load > case.max_load:
            return f"its lowest load is {lowest.label}, above {case.max_load:g}"
        return [lowest], None
    return fit, None


def _meets(row: PointRow, require: Mapping[str, Mapping[str, float]]) -> bool:
    for column, limits in require.items():
        value = row.get(column)
        if value is None or value < limits.get("min", -np.inf) or value > limits.get("max", np.inf):
            return False
    return True


def attained(samples: Sequence[ComparedPoint], limits: SloLimits) -> float:
    """The share of requests that are good, failed ones counting as not."""
    kept = [good(s.ttft_ms, s.tpot_ms, s.e2e_ms, s.failed, limits) for s in samples if s.failed.size]
    return float(np.concatenate(kept).mean()) if kept else 0.0


def _value(metric: str, level: RankedLevel) -> float | None:
    """The metric at a level: over all its repeats where the requests are there, else the row's."""
    source = SOURCES.get(metric)
    if source is not None:
        values = _pooled(level.samples, source[0])
        if values.size:
            found = float(statistic(values, source[1]))
            return found if np.isfinite(found) else None
    value = level.row.get(metric)
    return None if value is None else float(value)


def _pooled(samples: Sequence[ComparedPoint], source: str) -> Floats:
    parts = [getattr(sample, source) for sample in samples]
    kept = [part[~np.isnan(part)] for part in parts if part is not None]
    return np.concatenate(kept) if kept else np.empty(0)


def _draws(metric: str, level: RankedLevel, one: Entrant) -> Floats | None:
    """The metric of each resample; None when there is too little to draw from."""
    inverse = metric in COSTS
    rate_of = COSTS.get(metric, metric)
    # a rate of good requests varies as the engine does, and with which requests are good
    by_good = rate_of == "goodput_req_s"
    source = SOURCES.get("output_throughput_tok_s" if by_good else rate_of)
    if source is None:
        return None
    values = _pooled(level.samples, source[0])
    if values.size < STRETCHES_MIN:
        return None
    # drawn from its own name, so that two entrants are drawn independently and each the same every time
    rng = np.random.default_rng([ord(letter) for letter in one.name + level.label])
    if source[0] == "throughput_tok_s":
        spread = pooled_spread([one.throughput_tok_s for one in level.samples if one.throughput_tok_s is not None])
        if spread is None:
            return None
        rate = level.row.goodput_req_s if by_good else float(values.mean())
        if not rate:
            return None
        found = float(rate) * np.exp(spread.share * rng.standard_t(spread.freedom, RESAMPLES))
        if by_good:
            found = found * _good_draws(level.samples, one.own_limits or SloLimits(), rng)
    else:
        found = resampled(values, max(1, len(values) // STRETCHES), source[1], rng)
    if inverse:
        return np.array(
            [money.usd_per_million(rate, one.price_usd_per_hour, one.gpu_count) or np.nan for rate in found]
        )
    return found


def _good_draws(samples: Sequence[ComparedPoint], limits: SloLimits, rng: np.random.Generator) -> Floats:
    """The share of good requests in each resample, over the share seen."""
    kept = np.concatenate([good(s.ttft_ms, s.tpot_ms, s.e2e_ms, s.failed, limits) for s in samples if s.failed.size])
    if kept.size < STRETCHES_MIN or not kept.any():
        return np.ones(RESAMPLES)
    drawn = resampled(kept.astype(np.float64), max(1, kept.size // STRETCHES), None, rng)
    found: Floats = drawn / kept.mean()
    return found


def _lead(ranking: Sequence[Score], rules: Rules) -> tuple[float, float | None, float | None, str]:
    """The leader's lead over the runner-up with its interval, and why it is no win (empty when it is one)."""
    first, second = ranking[0], ranking[1]
    lead = first.value / second.value - 1 if second.value else 0.0
    tail = (1 - CONFIDENCE) / 2 / (len(ranking) - 1)
    bounds = [_bounds(first, rival, tail) for rival in ranking[1:]]
    low, high = bounds[0] if bounds[0] is not None else (None, None)
    for rival, bound in zip(ranking[1:], bounds, strict=True):
        size = abs(first.value / rival.value - 1) if rival.value else 0.0
        if bound is None:
            if size < rules.once_margin:
                return (
                    lead,
                    low,
                    high,
                    (
                        f"each was measured once, and {100 * size:.1f} % before {rival.entrant.name} may be chance: repeat it"
                    ),
                )
        elif bound[0] <= 0 <= bound[1]:
            return lead, low, high, f"the interval of the lead over {rival.entrant.name} includes 0 %"
        elif size < rules.margin:
            return lead, low, high, f"{100 * size:.1f} % before {rival.entrant.name} is under {100 * rules.margin:g} %"
    return lead, low, high, ""


def _bounds(first: Score, rival: Score, tail: float) -> tuple[float, float] | None:
    if first.draws is None or rival.draws is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(first.draws) - np.log(rival.draws)
    logs = logs[np.isfinite(logs)]
    if logs.size < first.draws.size / 2:
        return None
    middle = float(np.log(first.value / rival.value))
    low, high = np.quantile(logs, [tail, 1 - tail]).tolist()
    allowance = 1.959964 * np.sqrt(2) * START_SD
    return (
        float(np.expm1(middle - np.hypot(middle - low, allowance))),
        float(np.expm1(middle + np.hypot(high - middle, allowance))),
    )


def _changes(
    case: UseCase, entrants: Sequence[Entrant], ranking: Sequence[Score], *, with_doubtful: bool, margin: float
) -> list[str]:
    """What would change the answer, each in a line."""
    leader = ranking[0].entrant.name
    found = []
    if case.measure == "within_slo":
        found += _by_limit(case, entrants, leader, with_doubtful)
        for score in ranking:
            fit = [level for level in score.entrant.levels if level.verdict != "void"]
            if fit and score.slo_at == max(fit, key=lambda level: level.load).label:
                found.append(
                    f"{score.entrant.name} still met the limits at its highest load ({score.slo_at}): measure higher"
                )
    if case.measure == "best":
        found += _by_level(case, entrants, leader, margin)
    if case.metric in COSTS:
        found += _by_price(ranking, COSTS[case.metric])
    if not with_doubtful:
        found += _if_doubtful(case, entrants, leader)
    return found


def _by_limit(case: UseCase, entrants: Sequence[Entrant], leader: str, with_doubtful: bool) -> list[str]:
    found = []
    name = "ttft_ms" if case.limits.ttft_ms is not None else "e2e_ms" if case.limits.e2e_ms is not None else "tpot_ms"
    limit = getattr(case.limits, name)
    for factor in SLO_FACTORS:
        other = replace(case, limits=replace(case.limits, **{name: limit * factor}))
        ranking = _ranking(other, entrants, with_doubtful, [])
        label = f"with a limit of {limit * factor:g} ms on {name.removesuffix('_ms').upper()}"
        if not ranking:
            found.append(f"{label} none would meet it")
        elif ranking[0].entrant.name != leader:
            found.append(f"{label} {ranking[0].entrant.name} would lead")
    return found


def _by_level(case: UseCase, entrants: Sequence[Entrant], leader: str, margin: float) -> list[str]:
    """Loads at which somebody else leads by the margin or more."""
    at: dict[str, dict[str, float]] = {}
    for one in entrants:
        for level in one.levels:
            value = _value(case.metric, level) if level.verdict != "void" else None
            if value is not None:
                at.setdefault(level.label, {})[one.name] = value
    leads: dict[str, list[str]] = {}
    for label, values in at.items():
        best = (min if case.lower_is_better else max)(values, key=lambda name: values[name])
        own = values.get(leader)
        if own and values[best] and abs(values[best] / own - 1) >= margin:
            leads.setdefault(best, []).append(label)
    return [f"at load {', '.join(labels)} {name} leads" for name, labels in leads.items()]


def _by_price(ranking: Sequence[Score], rate_of: str) -> list[str]:
    found = []
    for score in ranking[1:]:
        rate = score.level.row.get(rate_of) if score.level is not None else None
        if rate:
            price = money.break_even_price(float(rate), ranking[0].value, score.entrant.gpu_count)
            found.append(f"{score.entrant.name} would be as cheap at {price:.3g} $ an hour for each GPU")
    return found


def _if_doubtful(case: UseCase, entrants: Sequence[Entrant], leader: str | None) -> list[str]:
    ranking = _ranking(case, entrants, True, [])
    if ranking and ranking[0].entrant.name != leader:
        return [f"if doubtful points counted, {ranking[0].entrant.name} would lead"]
    return []
