"""Compose and check all jobs of a command line before anything starts; report all problems together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped, unused-ignore]

from servebench.config.effects import has_effect, ignored
from servebench.config.folders import Composer, composer, folder_problems
from servebench.config.launchers import select_launcher
from servebench.config.machine import AUTO, machine_words, on_gpu_words, price_words, read_prices, runs_here
from servebench.config.overrides import Prepared, override_of, parse, parse_arguments, prepare, sweep
from servebench.config.problems import Problem, missing_option, missing_plugin, summarize_error, without_duplicates
from servebench.config.validate import Checked, check, to_plain
from servebench.contracts.cluster import ClusterSettings
from servebench.contracts.settings import RunSettings
from servebench.contracts.stored import chosen as chosen_option
from servebench.registry.conf import ABSTRACT, EXPERIMENT
from servebench.registry.registry import Registry
from servebench.util.errors import ConfigError
from servebench.util.gpus import find_gpus

PRESETS = "conf/"
"""How messages name the folder of servebench's own config files."""


@dataclass(frozen=True)
class Job:
    """One run to do. `overrides` are those of this job, as written, without Hydra's own; `resolved` is the whole config as a
    JSON-compatible dict, of which `settings_from_dict` makes the same settings.
    """

    overrides: tuple[str, ...]
    settings: RunSettings
    resolved: dict[str, Any]
    launcher: ClusterSettings | None = None
    """Where the runs of the study are done; None: on this machine, one after another."""
    doubt: str | None = None
    """Why its config is not known to be this user's own; None: it is."""
    here: bool = True
    """Whether the relative paths in its config are meant from the current folder."""
    by_machine: tuple[str, ...] = ()
    """What this machine chose, as overrides, where the config leaves that to it."""

    @property
    def title(self) -> str:
        """The title of the run: engine, launch if it is not `process`, model and workload."""
        launch = self.settings.launch.name
        shown = "" if launch == "process" else f" ({launch})"
        return f"{self.chosen('engine')}{shown} · {self.settings.model.name} · {self.chosen('workload')}"

    def chosen(self, group: Literal["engine", "workload"]) -> str:
        """Return the option chosen in a config group: two config files may be for the same engine or workload."""
        return chosen_option(self.overrides, group, getattr(self.settings, group).name)


def compose_jobs(arguments: Sequence[str], registry: Registry) -> list[Job]:
    """Return the jobs of these command-line arguments, in Hydra's order: one, or with `-m` one for each combination.

    Raises ConfigError with the problems of all jobs, each once.
    """
    words = parse_arguments(arguments)
    problems = list(words.problems)
    problems.extend(folder_problems(words.config_dirs, registry))
    jobs: list[Job] = []
    unused: dict[str, Problem] = {}
    runs: list[tuple[set[str], RunSettings | None]] = []
    with composer(registry, words.config_dirs, words.config_name) as source:
        overrides, unreadable = parse(words.overrides)
        problems.extend(unreadable)
        expanded, more = expand(source, registry, overrides, multirun=words.multirun)
        problems.extend(more)
        composed = [compose_job(source, registry, texts) for texts in expanded]
        if any(one.by_machine for one in composed):
            # an engine that needs no GPU is compared with those that do: on one model, workload and load
            composed = [
                one if one.by_machine else compose_job(source, registry, texts, on_gpu=True)
                for one, texts in zip(composed, expanded, strict=True)
            ]
        for texts, prepared in zip(expanded, composed, strict=True):
            settings, launcher, more = _settings(source, registry, prepared)
            problems.extend(problem for problem in more if problem.kind != "unused")
            without_effect = {problem.path: problem for problem in more if problem.kind == "unused"}
            unused |= without_effect
            runs.append((set(without_effect), settings))
            if settings is not None:
                own = tuple(text for text in texts if not text.lstrip("+~").startswith(("hydra.", "hydra/")))
                jobs.append(Job(own, settings, to_plain(settings), launcher, by_machine=tuple(prepared.by_machine)))
    # of several runs one that uses a setting is enough
    problems.extend(
        problem
        for path, problem in unused.items()
        if not any(path not in paths and (one is None or has_effect(one, path)) for paths, one in runs)
    )
    problems.extend(_several_studies(jobs))
    if problems:
        raise ConfigError([problem.text for problem in without_duplicates(problems)])
    return jobs


def _several_studies(jobs: Sequence[Job]) -> list[Problem]:
    """Return a problem for each setting of a whole study that has several values: one command makes one study."""
    problems = []
    for section, key in (("study", "name"), ("study", "dir"), ("tracking", "name"), ("tracking", "uri")):
        values = list(dict.fromkeys(str(getattr(getattr(job.settings, section), key)) for job in jobs))
        if len(values) > 1:
            line = f"{section}.{key}={','.join(values)}: all runs of a command are one study; give one value"
            problems.append(Problem(line, "combination", f"{section}.{key}"))
    return problems


def expand(
    source: Composer, registry: Registry, overrides: Sequence[Override], *, multirun: bool
) -> tuple[list[list[str]], list[Problem]]:
    """Return the overrides of each job. Without `multirun` several values are a problem; they are expanded nevertheless, so
    that their own problems are reported too.
    """
    problems: list[Problem] = []
    swept = [override for override in overrides if override.is_sweep_override()]
    if swept and not multirun:
        problems.append(_needs_multirun(swept, source))
    jobs: list[list[str]] = []
    for chosen in _by_experiment(overrides, source):
        params = _sweeper_params(source, registry, chosen)
        if params and not multirun:
            line = f"{_experiment(chosen)} sweeps {', '.join(params)}, so it makes several runs; add -m"
            problems.append(Problem(line, "words"))
        parsed, unreadable = parse(f"{key}={value}" for key, value in params.items())
        some, unswept = sweep([*parsed, *chosen], source)
        jobs.extend(some)
        problems.extend([*unreadable, *unswept])
    return jobs, problems


def compose_job(source: Composer, registry: Registry, texts: Sequence[str], *, on_gpu: bool = False) -> Prepared:
    """Compose one job as far as possible; its `config` is None if Hydra failed. `on_gpu`: it runs what engines on a GPU run."""
    overrides, problems = parse(texts)
    prepared = prepare(overrides, source, registry)
    prepared.problems = [*problems, *prepared.problems]
    while True:
        try:
            prepared.config = source.compose(prepared.words)
            _ask_machine(source, registry, prepared, on_gpu=on_gpu)
            for key in prepared.emptied:
                if OmegaConf.select(prepared.config, key) is None:
                    OmegaConf.update(prepared.config, key, {}, force_add=True)
            return prepared
        except MissingConfigException as error:
            group, _, option = (error.missing_cfg_file or "").rpartition("/")
            if not group and option == source.config_name:
                line = f"--config-name {option}: no such file in {PRESETS}; add its folder with --config-dir DIR"
                prepared.problems.append(Problem(line, "words"))
                return prepared
            # "In 'load/mine': Could not find ...": a file that inherits a missing one names itself
            inherited = str(error).startswith(f"In '{group}/")
            known = group in source.groups and not inherited
            plugin = missing_plugin(group, option, registry) if inherited else None
            if plugin is not None:
                file = str(error).split("'")[1]
                prepared.problems.append(Problem(f"{file}.yaml inherits {option}: {plugin}", "group", group))
                return prepared
            if not known or group in prepared.distrusted or not source.has_abstract(group):
                prepared.problems.append(Problem(summarize_error(error), "compose"))
                return prepared
            # the default, or an experiment, names a missing option: continue with the group's base
            line = missing_option(group, option, registry, listed=source.options(group))
            prepared.problems.append(Problem(line, "group", group))
            prepared.distrusted.add(group)
            prepared.words.append(f"{group}={ABSTRACT}")
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            line = summarize_error(error)
            if isinstance(error, UnicodeDecodeError) and (damaged := _not_utf8(source, prepared.choices)) is not None:
                line = f"{damaged} is not a text file in UTF-8: {error.reason}"
            prepared.problems.append(Problem(line, "compose"))
            return prepared


def _ask_machine(source: Composer, registry: Registry, prepared: Prepared, *, on_gpu: bool) -> None:
    """Compose again with what this machine chooses, where the config leaves that to it, and with the user's price of the GPU."""
    config = prepared.config
    if config is not None and runs_here(config, registry):
        gpus = find_gpus() if config.hydra.runtime.choices.get("gpu") == AUTO else ()
        prepared.by_machine = machine_words(config, prepared.keys, source.options("gpu"), gpus)
    elif config is not None and on_gpu:
        prepared.by_machine = on_gpu_words(config, prepared.keys)
    chosen = {f"{word.partition('=')[0]}={AUTO}" for word in prepared.by_machine}
    prepared.words = [*prepared.by_machine, *(word for word in prepared.words if word not in chosen)]
    config = prepared.config = source.compose(prepared.words)
    if OmegaConf.select(config, "gpu.count"):
        try:
            prepared.words = [*price_words(config, read_prices()), *prepared.words]
        except ConfigError as error:
            prepared.problems += [Problem(fault, "value", "gpu.price_usd_per_hour") for fault in error.faults]
        prepared.config = source.compose(prepared.words)


def _not_utf8(source: Composer, choices: Mapping[str, str]) -> Path | None:
    """Return the first file of these choices that is not text in UTF-8, which its error does not name."""
    for group, option in choices.items():
        file = source.file_of(f"{group}/{option}")
        try:
            if file is not None:
                file.read_text("utf-8")
        except UnicodeDecodeError:
            return file
    return None


def check_job(source: Composer, registry: Registry, prepared: Prepared) -> Checked:
    """Check a composed job. Its problems begin with those of composing."""
    if prepared.config is None:
        return Checked(problems=list(prepared.problems))
    plain, problems = _resolved(prepared.config, prepared)
    if EXPERIMENT in plain:
        # without its first line a file of this group sets keys of a section `experiment`
        name = f"{EXPERIMENT}/{prepared.choices.get(EXPERIMENT, '')}"
        line = f"{source.file_of(name) or name} must begin with the line '# @package _global_', and then set keys"
        problems.append(Problem(line, "compose", EXPERIMENT))
        del plain[EXPERIMENT]
    unresolved = {problem.path for problem in problems}
    checked = check(
        plain,
        registry,
        origin=lambda path: _origin(source, prepared, path),
        distrusted=prepared.distrusted | unresolved,
        options={group: source.options(group) for group in registry.kinds},
    )
    checked.problems = [
        *prepared.problems,
        *problems,
        *(problem for problem in checked.problems if problem.path not in unresolved),
    ]
    # what a key takes over from another, the other says
    own = [one for one in checked.problems if not _taken_over(prepared.config, one.path)]
    checked.problems = own or checked.problems
    return checked


def _taken_over(config: DictConfig, path: str) -> bool:
    section, _, key = path.rpartition(".")
    found = OmegaConf.select(config, section, throw_on_resolution_failure=False) if section else None
    return isinstance(found, DictConfig) and key in found and OmegaConf.is_interpolation(found, key)


def _unused(source: Composer, prepared: Prepared, checked: Checked) -> list[Problem]:
    """Return a problem for each setting of the user that has no effect in a job without other problems."""
    if checked.settings is None:
        return []

    def is_set(path: str) -> bool:
        """Whether this command or a file of the user sets a key."""
        origin = _origin(source, prepared, path)
        return bool(origin) and not origin.startswith(PRESETS)

    written = RunSettings(**checked.sections)
    return [Problem(line, "unused", path) for path, line in ignored(written, is_set).items()]


def _settings(
    source: Composer, registry: Registry, prepared: Prepared
) -> tuple[RunSettings | None, ClusterSettings | None, list[Problem]]:
    checked = check_job(source, registry, prepared)
    launcher, problems = select_launcher(prepared.config) if prepared.config is not None else (None, [])
    problems = [*checked.problems, *_unused(source, prepared, checked), *problems]
    failed = any(problem.kind != "unused" for problem in problems)
    return (None, None, problems) if failed else (checked.settings, launcher, problems)


def _needs_multirun(swept: Sequence[Override], source: Composer) -> Problem:
    """Return the problem of several values without -m: a comma makes runs, a list needs brackets."""
    shown = " ".join(str(override.input_line) for override in swept)
    lists = [override for override in swept if override.key_or_group not in source.groups]
    line = f"{shown}: several values make several runs; add -m"
    if lists:
        first = lists[0]
        line += f"; for one run with a list write {first.key_or_group}=[{first.get_value_string()}]"
    return Problem(line, "words")


def _by_experiment(overrides: Sequence[Override], source: Composer) -> list[list[Override]]:
    """Return the overrides once for each experiment, because an experiment may have sweeps of its own."""
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
    """Return `hydra.sweeper.params` of the config in which each sweep has its first value.

    Problems here are problems of a job too, and reported there.
    """
    jobs, _ = sweep(overrides, source)
    config = compose_job(source, registry, jobs[0]).config if jobs else None
    params = OmegaConf.select(config, "hydra.sweeper.params") if config is not None else None
    return {str(key): value for key, value in params.items()} if params else {}


def _resolved(config: DictConfig, prepared: Prepared) -> tuple[dict[str, Any], list[Problem]]:
    """Return the config without its hydra node, as plain containers, and a problem for each section that does not resolve."""
    plain: dict[str, Any] = {}
    problems: list[Problem] = []
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
            line = f"{where}: {summarize_error(error)}" + (f" (from {text})" if text else "")
            problems.append(Problem(line, "value", section))
    return plain, problems


def _origin(source: Composer, prepared: Prepared, path: str) -> str:
    """Return where the value at a dotted path was set: the override, else the file; an empty string for a default."""
    if (text := override_of(prepared.keys, path)) is not None:
        return text
    found = ""
    for layer in source.layers(prepared.words):
        if layer.package and not path.startswith(f"{layer.package}."):
            continue
        if _holds(layer.content, path[len(layer.package) + 1 :] if layer.package else path):
            found = f"{layer.folder or PRESETS}{layer.name}.yaml"
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


def config_text(
    arguments: Sequence[str], registry: Registry, *, resolve: bool = False, package: str | None = None
) -> str:
    """Return the config of the run of these words as YAML, or a `package` of it: a group or a dotted key. Raises ConfigError with
    one line for each problem."""
    words = parse_arguments(arguments)
    problems = [*words.problems, *folder_problems(words.config_dirs, registry)]
    with composer(registry, words.config_dirs, words.config_name) as source:
        overrides, unreadable = parse(words.overrides)
        swept = [one.input_line for one in overrides if one.is_sweep_override()]
        lines = [
            f"{text}: only one config can be shown; give one value{' and no -m' * words.multirun}" for text in swept
        ]
        if words.multirun and not swept:
            lines = ["--cfg shows one config; leave out -m"]
        problems += [*unreadable, *(Problem(line, "words") for line in lines)]
        jobs, more = sweep(overrides, source)
        prepared = compose_job(source, registry, jobs[0])
        faults = check_job(source, registry, prepared).problems
        problems += [*more, *(one for one in faults if one.kind in ("syntax", "group", "compose", "key"))]
    if problems or prepared.config is None:
        raise ConfigError([problem.text for problem in without_duplicates(problems)])
    shown = OmegaConf.masked_copy(prepared.config, [str(key) for key in prepared.config if key != "hydra"])
    try:
        part = OmegaConf.select(shown, package) if package else shown
        if part is None:
            raise ConfigError(
                f"--package {package}: the config has no such part; the groups are {', '.join(map(str, shown))}"
            )
        return OmegaConf.to_yaml(part, resolve=resolve) if OmegaConf.is_config(part) else f"{part}\n"
    except OmegaConfBaseException as error:
        raise ConfigError(summarize_error(error)) from error
