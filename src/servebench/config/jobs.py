"""Composes jobs: all of a command line are composed and checked before anything starts, and all faults are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped, unused-ignore]

from servebench.config.absent import absent
from servebench.config.faults import Fault, one_line, unique
from servebench.config.folders import Composer, composer, folder_faults
from servebench.config.launchers import launcher_of
from servebench.config.overrides import Prepared, override_of, parse, prepare, sweep
from servebench.config.validate import Checked, check, to_plain
from servebench.config.words import Words, parse_words
from servebench.contracts.cluster import ClusterSettings
from servebench.contracts.settings import RunSettings
from servebench.registry.conf import ABSTRACT, EXPERIMENT
from servebench.registry.registry import Registry
from servebench.util.errors import ConfigError


@dataclass(frozen=True)
class Job:
    """One run to make. `overrides` are those of this job, as written (Hydra's own left out); `resolved` is the whole
    config as a dict that JSON can hold, from which `settings_from_dict` makes the same settings.
    """

    overrides: tuple[str, ...]
    settings: RunSettings
    resolved: dict[str, Any]
    launcher: ClusterSettings | None = None
    """Where the runs of the study are done; null: here, one after another."""


@dataclass
class Composed:
    """What Hydra made of a job's overrides; `config` is null when it could make nothing of them."""

    prepared: Prepared
    config: DictConfig | None


def compose_jobs(arguments: Sequence[str], registry: Registry) -> list[Job]:
    """The jobs that these command-line words ask for, in Hydra's order: one, or with `-m` one for each combination.

    Raises ConfigError with the faults of all jobs, each told once.
    """
    words = parse_words(arguments)
    faults = list(words.faults)
    faults.extend(folder_faults(words.config_dirs, registry))
    jobs: list[Job] = []
    with composer(registry, words.config_dirs, words.config_name) as source:
        overrides, unreadable = parse(words.overrides)
        faults.extend(unreadable)
        expanded, more = expand(source, registry, overrides, multirun=words.multirun)
        faults.extend(more)
        for texts in expanded:
            settings, launcher, more = _settings(source, registry, texts)
            faults.extend(more)
            if settings is not None:
                asked = tuple(text for text in texts if not text.lstrip("+~").startswith(("hydra.", "hydra/")))
                jobs.append(Job(asked, settings, to_plain(settings), launcher))
    if faults:
        raise ConfigError([fault.text for fault in unique(faults)])
    return jobs


def expand(
    source: Composer, registry: Registry, overrides: Sequence[Override], *, multirun: bool
) -> tuple[list[list[str]], list[Fault]]:
    """The overrides of each job. Without `multirun` several values are a fault, and expanded all the same, so that what
    is wrong with them is told too.
    """
    faults: list[Fault] = []
    swept = [override for override in overrides if override.is_sweep_override()]
    if swept and not multirun:
        faults.append(_needs_multirun(swept, source))
    jobs: list[list[str]] = []
    for chosen in _by_experiment(overrides, source):
        params = _sweeper_params(source, registry, chosen)
        if params and not multirun:
            line = f"{_experiment(chosen)} sweeps {', '.join(params)}, so it makes several runs: add -m"
            faults.append(Fault(line, "words"))
        parsed, unreadable = parse(f"{key}={value}" for key, value in params.items())
        some, unswept = sweep([*parsed, *chosen], source)
        jobs.extend(some)
        faults.extend([*unreadable, *unswept])
    return jobs, faults


def compose_job(source: Composer, registry: Registry, texts: Sequence[str]) -> Composed:
    """Compose one job as far as it can be; what is wrong ends in the faults of its `prepared`."""
    overrides, faults = parse(texts)
    prepared = prepare(overrides, source, registry)
    prepared.faults = [*faults, *prepared.faults]
    while True:
        try:
            return Composed(prepared, source.compose(prepared.words))
        except MissingConfigException as error:
            group, _, option = (error.missing_cfg_file or "").rpartition("/")
            # "In 'load/mine': Could not find ...": a file that inherits what is not there names itself
            inherited = str(error).startswith(f"In '{group}/")
            known = group in source.groups and not inherited
            if not known or group in prepared.distrusted or not source.has_abstract(group):
                prepared.faults.append(Fault(one_line(error), "compose"))
                return Composed(prepared, None)
            # the default, or an experiment, names an option that is not there: go on with the group's base
            line = absent(group, option, registry, listed=source.options(group))
            prepared.faults.append(Fault(line, "group", group))
            prepared.distrusted.add(group)
            prepared.words.append(f"{group}={ABSTRACT}")
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            prepared.faults.append(Fault(one_line(error), "compose"))
            return Composed(prepared, None)


def check_job(source: Composer, registry: Registry, composed: Composed) -> Checked:
    """Check a composed job. The faults of composing come first."""
    prepared = composed.prepared
    if composed.config is None:
        return Checked(faults=list(prepared.faults))
    plain, faults = _resolved(composed.config, prepared)

    def origin(path: str) -> str:
        return _origin(source, prepared, path)

    unresolved = {fault.path for fault in faults}
    checked = check(
        plain,
        registry,
        origin=origin,
        distrusted=prepared.distrusted | unresolved,
        options={group: source.options(group) for group in registry.kinds},
    )
    checked.faults = [
        *prepared.faults,
        *faults,
        *(fault for fault in checked.faults if fault.path not in unresolved),
    ]
    return checked


def _settings(
    source: Composer, registry: Registry, texts: Sequence[str]
) -> tuple[RunSettings | None, ClusterSettings | None, list[Fault]]:
    composed = compose_job(source, registry, texts)
    checked = check_job(source, registry, composed)
    launcher, faults = launcher_of(composed.config) if composed.config is not None else (None, [])
    faults = [*checked.faults, *faults]
    return (None, None, faults) if faults else (checked.settings, launcher, [])


def _needs_multirun(swept: Sequence[Override], source: Composer) -> Fault:
    """Hydra's command line gives several values with a comma; a list needs brackets."""
    shown = " ".join(str(override.input_line) for override in swept)
    lists = [override for override in swept if override.key_or_group not in source.groups]
    line = f"{shown}: several values make several runs: add -m"
    if lists:
        first = lists[0]
        line += f"; for one run with a list write {first.key_or_group}=[{first.get_value_string()}]"
    return Fault(line, "words")


def _by_experiment(overrides: Sequence[Override], source: Composer) -> list[list[Override]]:
    """The overrides once for each experiment, because an experiment may bring sweeps of its own."""
    chosen = [override for override in overrides if override.key_or_group == EXPERIMENT]
    if not chosen or not chosen[-1].is_sweep_override():
        return [list(overrides)]
    values, _ = sweep(chosen[-1:], source)
    each: list[list[Override]] = []
    for value in values:
        parsed, _ = parse(value)
        each.append([parsed[0] if override is chosen[-1] else override for override in overrides])
    return each


def _experiment(overrides: Sequence[Override]) -> str:
    chosen = [str(override.input_line) for override in overrides if override.key_or_group == EXPERIMENT]
    return chosen[-1] if chosen else "hydra.sweeper.params"


def _sweeper_params(source: Composer, registry: Registry, overrides: Sequence[Override]) -> dict[str, Any]:
    """`hydra.sweeper.params` of the config in which each sweep stands at its first value.

    What is wrong here is wrong in a job too, and told there.
    """
    jobs, _ = sweep(overrides, source)
    config = compose_job(source, registry, jobs[0]).config if jobs else None
    params = OmegaConf.select(config, "hydra.sweeper.params") if config is not None else None
    return {str(key): value for key, value in params.items()} if params else {}


def _resolved(config: DictConfig, prepared: Prepared) -> tuple[dict[str, Any], list[Fault]]:
    """The config without its hydra node, as plain containers. What does not resolve is a fault of its section."""
    plain: dict[str, Any] = {}
    faults: list[Fault] = []
    for key in config:
        section = str(key)
        if section == "hydra":
            continue
        try:
            value = config[section]
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True, throw_on_missing=False)
            plain[section] = value
        except InterpolationResolutionError as error:
            where = error.full_key or section
            text = override_of(prepared.keys, where)
            line = f"{where}: {one_line(error)}" + (f" (from {text})" if text else "")
            faults.append(Fault(line, "value", section))
    return plain, faults


def _origin(source: Composer, prepared: Prepared, path: str) -> str:
    """Where the value at a dotted path came from: the override that set it, else the file; nothing for a default."""
    text = override_of(prepared.keys, path)
    if text is not None:
        return f" (from {text})"
    file = _file_of(source, prepared.words, path)
    return f" (from {file})" if file else ""


def _file_of(source: Composer, words: Sequence[str], path: str) -> str | None:
    """The last file of the defaults list that sets a dotted path."""
    defaults = source.loader.compute_defaults_list(
        config_name=source.config_name, overrides=list(words), run_mode=RunMode.RUN
    )
    found: str | None = None
    for default in defaults.defaults:
        name, package = str(default.config_path), default.package or ""
        if package and not path.startswith(f"{package}."):
            continue
        inner = path[len(package) + 1 :] if package else path
        holder = next((item for item in source.loader.get_sources() if item.is_config(name)), None)
        if holder is None:
            continue
        content = OmegaConf.to_container(holder.load_config(name).config, resolve=False)
        if _holds(content, inner):
            folder = "conf" if holder.provider == "main" else holder.path
            found = f"{folder}/{name}.yaml"
    return found


def _holds(content: Any, path: str) -> bool:
    for part in path.split("."):
        if isinstance(content, Mapping) and part in content:
            content = content[part]
        elif isinstance(content, list) and part.isdigit() and int(part) < len(content):
            content = content[int(part)]
        else:
            return False
    return True


def compose_faults(words: Words, registry: Registry) -> tuple[list[str], list[Fault]]:
    """The words that Hydra should be given to show one run's config, and what keeps it from being composed."""
    faults = [*words.faults, *folder_faults(words.config_dirs, registry)]
    with composer(registry, words.config_dirs, words.config_name) as source:
        overrides, unreadable = parse(words.overrides)
        faults.extend(unreadable)
        for override in overrides:
            if override.is_sweep_override():
                faults.append(Fault(f"{override.input_line}: one config is shown; give one value", "words"))
        jobs, more = sweep(overrides, source)
        faults.extend(more)
        composed = compose_job(source, registry, jobs[0])
        checked = check_job(source, registry, composed)
        faults.extend(fault for fault in checked.faults if fault.kind in ("syntax", "group", "compose", "key"))
    return composed.prepared.words, unique(faults)
