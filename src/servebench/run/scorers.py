"""The scorers of a run: which are selected, which can run, and where their questions are."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from servebench.contracts.quality import Scorer
from servebench.contracts.settings import QualitySettings, RunSettings
from servebench.quality.data import question_file
from servebench.registry.registry import Registry
from servebench.util.errors import ConfigError
from servebench.util.wheel_file import PackagedFile

ALL = "all"
NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The scorers of a run that can be used here with where their questions are, and why others are left out."""

    scorers: tuple[tuple[Scorer, Path], ...] = ()
    left_out: tuple[str, ...] = ()


def asked_scorers(quality: QualitySettings, registry: Registry) -> list[Scorer]:
    """The scorers that the settings name. Raises ConfigError for one that nothing installed offers."""
    if quality.name == NONE:
        return []
    if quality.name != ALL:
        return [registry.find("quality", quality.name)(quality)]
    names = quality.tasks or tuple(registry.kinds["quality"])
    shared = {one.name: getattr(quality, one.name) for one in fields(QualitySettings)} | {"tasks": ()}
    found: list[Scorer] = []
    for name in names:
        kind: type[Scorer] = registry.find("quality", name)
        found.append(kind(kind.settings_type(**{**shared, "name": name})))
    return found


def choose(settings: RunSettings, registry: Registry, cache_dir: Path) -> Chosen:
    """The scorers that can run, their questions fetched. With `all`, those that cannot are left out and say why; of those
    that `quality.tasks` names only such as grade the answers of another workload, for a sweep has several.

    Raises ConfigError when a scorer that was named cannot run, or none of all can.
    """
    quality = settings.quality
    scorers: list[tuple[Scorer, Path]] = []
    reasons: list[str] = []
    unfit: list[str] = []
    for scorer in asked_scorers(quality, registry):
        other = _unfit(scorer, settings.workload.name, registry)
        if other and quality.name == ALL:
            unfit += [f"{scorer.name}: {fault}" for fault in other]
            continue
        faults = [*scorer.check(), *other]
        path = Path()
        if not faults:
            try:
                path = _questions(scorer, cache_dir)
                if not scorer.asks_itself and not scorer.grades_load:
                    scorer.items(path, 1, scorer.settings.seed)
            except ConfigError as error:
                faults = error.faults
        if faults:
            reasons += [f"{scorer.name}: {fault}" for fault in faults]
        else:
            scorers.append((scorer, path))
    everything = quality.name == ALL and not quality.tasks
    if reasons and not (everything and scorers):
        told = [*reasons, *unfit]
        if told:
            raise ConfigError(
                [f"quality={quality.name}: {reason.removeprefix(f'{quality.name}: ')}" for reason in told]
            )
    return Chosen(scorers=tuple(scorers), left_out=(*reasons, *unfit))


def _unfit(scorer: Scorer, workload: str, registry: Registry) -> list[str]:
    """Why the answers of a workload cannot be graded."""
    if not scorer.grades_load:
        return []
    kinds = registry.kinds["workload"]
    keys = kinds[workload].reference_keys if workload in kinds else None
    if keys is None or scorer.load_reference in keys:
        return []
    fit = [name for name, kind in kinds.items() if scorer.load_reference in (kind.reference_keys or ())]
    return [
        f"it grades the answers of the load, and workload={workload} has no {scorer.load_reference} to grade them by; use "
        + " or ".join(f"workload={name}" for name in fit)
    ]


def _questions(scorer: Scorer, cache_dir: Path) -> Path:
    """Where a scorer's questions are, fetched if need be. Raises ConfigError."""
    if scorer.asks_itself or scorer.grades_load:
        return Path(scorer.settings.path or "")
    if scorer.settings.path is not None:
        return Path(scorer.settings.path).expanduser()
    if isinstance(scorer.source, PackagedFile):
        return question_file(scorer.source, cache_dir)
    if scorer.source is None:
        raise ConfigError("it brings no questions: name a file with quality.path=")
    return scorer.source
