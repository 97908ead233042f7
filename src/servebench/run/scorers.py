"""The scorers of a run: which are configured, which can run, and where their questions are."""

from dataclasses import dataclass, fields
from pathlib import Path

from servebench.config.problems import missing_option
from servebench.contracts.quality import Scorer
from servebench.contracts.settings import QualitySettings, RunSettings
from servebench.protocol.kinds.table import kind_named
from servebench.quality.rows import question_file
from servebench.registry.registry import Registry
from servebench.util.errors import ConfigError
from servebench.util.wheel_file import PackagedFile

ALL = "all"
NONE = "none"


@dataclass(frozen=True, kw_only=True)
class SelectedScorers:
    """The scorers that can run, each with the file of its questions, and why others are left out."""

    scorers: tuple[tuple[Scorer, Path], ...] = ()
    left_out: tuple[str, ...] = ()


def configured_scorers(quality: QualitySettings, registry: Registry) -> list[Scorer]:
    """Return the scorers that the settings name. Raises ConfigError for an unknown one."""
    if quality.name == NONE:
        return []
    if quality.name != ALL:
        return [registry.find("quality", quality.name)(quality)]
    names = quality.tasks or tuple(registry.kinds["quality"])
    shared = {one.name: getattr(quality, one.name) for one in fields(QualitySettings)} | {"tasks": ()}
    scorers: list[Scorer] = []
    for name in names:
        if name not in registry.kinds["quality"]:
            raise ConfigError(missing_option("quality", name, registry))
        kind: type[Scorer] = registry.find("quality", name)
        scorers.append(kind(kind.settings_type(**{**shared, "name": name})))
    return scorers


def select_scorers(settings: RunSettings, registry: Registry, cache_dir: Path) -> SelectedScorers:
    """Return the scorers that can run, with their questions downloaded.

    With `quality=all`, scorers that cannot run are left out with a reason; with `quality.tasks` only those that grade
    another workload's answers are, because a sweep may have several workloads. Raises ConfigError when a scorer that the
    user named cannot run, or when none can.
    """
    quality = settings.quality
    scorers: list[tuple[Scorer, Path]] = []
    faults: list[str] = []
    unfit: list[str] = []
    for scorer in configured_scorers(quality, registry):
        mismatch = _workload_faults(scorer, settings.workload.name, registry) + _kind_faults(scorer)
        if mismatch and quality.name == ALL:
            unfit += [f"{scorer.name}: {fault}" for fault in mismatch]
            continue
        own_faults = [*scorer.check(), *mismatch]
        path = Path()
        if not own_faults:
            try:
                path = _question_path(scorer, cache_dir)
                if not scorer.asks_itself and not scorer.grades_load:
                    # a question that cannot be read is an error before anything starts
                    scorer.items(path, scorer.settings.count, scorer.settings.seed)
            except ConfigError as error:
                own_faults = error.faults
        if own_faults:
            faults += [f"{scorer.name}: {fault}" for fault in own_faults]
        else:
            scorers.append((scorer, path))
    optional = quality.name == ALL and not quality.tasks and scorers
    if faults and not optional:
        prefix = f"{quality.name}: "
        raise ConfigError([f"quality={quality.name}: {fault.removeprefix(prefix)}" for fault in (*faults, *unfit)])
    return SelectedScorers(scorers=tuple(scorers), left_out=(*faults, *unfit))


def _workload_faults(scorer: Scorer, workload: str, registry: Registry) -> list[str]:
    """Return why a scorer cannot grade the answers to this workload."""
    if not scorer.grades_load:
        return []
    kinds = registry.kinds["workload"]
    keys = kinds[workload].reference_keys if workload in kinds else None
    if keys is None or scorer.load_reference in keys:
        return []
    fit = [name for name, kind in kinds.items() if scorer.load_reference in (kind.reference_keys or ())]
    return [
        f"it grades the answers to the load by their {scorer.load_reference}, which workload={workload} does not have; use "
        + " or ".join(f"workload={name}" for name in fit)
    ]


def _kind_faults(scorer: Scorer) -> list[str]:
    kind = kind_named(scorer.settings.api)
    if scorer.grades_load or kind.answers_text or scorer.name == kind.correctness:
        return []
    instead = f"; use quality={kind.correctness}" if kind.correctness else ""
    return [f"it grades texts, and answers to quality.api={kind.name} have none{instead}"]


def _question_path(scorer: Scorer, cache_dir: Path) -> Path:
    """Return the file of a scorer's questions, and download it if needed. Raises ConfigError."""
    if scorer.asks_itself or scorer.grades_load:
        return Path(scorer.settings.path or "")
    if scorer.settings.path is not None:
        return Path(scorer.settings.path).expanduser()
    if isinstance(scorer.source, PackagedFile):
        return question_file(scorer.source, cache_dir)
    if scorer.source is None:
        raise ConfigError("it has no questions of its own; set quality.path to a file")
    return scorer.source
