"""The trust boundary: decide whether what is stored may act, or ask the user first. SECURITY.md describes it.

The command line and the user's own config files are trusted. A stored config or study is trusted if this user's key signed
it (`store.seal`). Everything else is shown and confirmed before it starts a program, sends data or names a folder.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from servebench.analysis.tuning.candidates import with_settings
from servebench.config import Job, settings_from_dict
from servebench.config.overrides import LOCK_WORD
from servebench.registry.registry import Registry
from servebench.store.layout import StudyFolder
from servebench.store.sealed import SealedStudy, read_sealed
from servebench.store.tune import TuneState
from servebench.study.show_commands import engine_command
from servebench.util.children import HUB_TOKENS
from servebench.util.errors import ConfigError
from servebench.util.plain_data import leaves
from servebench.util.safe_text import clean_terminal
from servebench.util.secret_patterns import MARK

SHOWN_MAX = 20_000
"""Characters of a description that a person can still judge; what matters could hide in a longer one."""
SHOWN_WHOLE = ("engine", "launch", "tracking", "study", "cluster", "tune")
"""Groups of which every value is shown; of the others only text, which may be a path or an address."""
PATH_KEYS = ("path", "dataset", "tokenizer", "executable")


def confirm_locked(jobs: Sequence[Job], words: Sequence[str], registry: Registry, *, trusted: bool) -> None:
    """Confirm the job of a manifest (`--lock`) that is not this user's own. Raises ConfigError if it is not trusted."""
    for job in jobs:
        doubt = job.doubt or _other_folder(job.resolved, here=job.here)
        if doubt is not None:
            path = next((word for word in words if word != LOCK_WORD), "")
            confirm(path, doubt, _effects(job, registry), trusted=trusted)


def confirm_study(folder: StudyFolder, registry: Registry, *, trusted: bool, adopt: bool) -> SealedStudy:
    """Return a stored study as it is to be continued: this user's own, or one that is confirmed; `adopt` signs it then.

    Raises ConfigError if it is not trusted, or its config cannot be read; StoreError.
    """
    study = read_sealed(folder)
    configs = [run.config for run in study.plan] + ([] if study.tune is None else [_tune_config(study.tune)])
    doubt = study.doubt or next((why for one in configs if (why := _other_folder(one, here=study.here))), None)
    if doubt is not None:
        confirm(str(folder.path), doubt, _study_effects(study, registry), trusted=trusted)
        if adopt:
            study.adopt()
    return study


def _study_effects(study: SealedStudy, registry: Registry) -> list[str]:
    """Return what a stored study would do, one line each, from all of its files."""
    effects: list[str] = []
    for overrides, config in _stored_configs(study):
        effects += _effects(Job(overrides, settings_from_dict(config, registry), dict(config)), registry)
    if study.tune is not None:
        config = _tune_config(study.tune)
        effects += [*_variables_line(config), *_values(config)]
        if study.tune.question.out is not None:
            effects += [_line("writes to", str(Path(study.tune.question.out).expanduser().absolute()))]
    effects += _values({"tracking": study.state.tracking, "cluster": study.state.launcher})
    effects += [_line("sends prompts of", str(path)) for path in study.prompts]
    return [*effects, _line("writes to", str(study.folder.path))]


def _stored_configs(study: SealedStudy) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the overrides and configs of a study: of its plan, of a tune's candidates beside it, of manifests beside both."""
    planned = {run.name: run for run in study.plan}
    for run in study.plan:
        yield run.overrides, run.config
    for one in () if study.tune is None else study.tune.candidates:
        stock = planned.get(study.tune.stock_of(one).run) if study.tune is not None else None
        if one.run not in planned and stock is not None:
            yield stock.overrides, with_settings(stock.config, one.settings)
    for manifest in study.manifests.values():
        yield tuple(manifest.get("overrides", ())), manifest["config"]


def _tune_config(tune: TuneState) -> dict[str, Any]:
    """Return what `tune.json` holds beside the settings of its plan, under the keys of a config."""
    settings = {one.run: dict(one.settings) for one in tune.candidates}
    return {"quality": tune.quality, "tune": {**asdict(tune.question), "spaces": tune.spaces, "candidates": settings}}


def confirm(what: str, doubt: str, effects: Sequence[str], *, trusted: bool) -> None:
    """Print what would be done, and ask on a terminal unless `trusted`. Raises ConfigError if the answer is not yes."""
    name = visible(what)
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    if not trusted and not asks:
        raise ConfigError(
            f"{name} is not trusted: {doubt}; run this in a terminal to see what it would do, or add --trust if you know "
            "who made it"
        )
    text = "".join(f"  {line}\n" for line in dict.fromkeys(effects))
    if not trusted and len(text) > SHOWN_MAX:
        raise ConfigError(
            f"{name} is not trusted: {doubt}; what it would do is too long to show ({len(text)} characters), read the file "
            "and add --trust"
        )
    sys.stderr.write(f"{name}: {doubt}\nIt would do this on your machine, in your name:\n{text}")
    if trusted:
        return
    sys.stderr.write("Do you trust it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError(f"{name} is not trusted; nothing was started or sent")


def visible(text: str) -> str:
    """Return text of a stranger for a terminal: every character that is not printed is written as an escape."""
    return clean_terminal("".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text))


def _effects(job: Job, registry: Registry) -> list[str]:
    """Return what a job would do, one line each: its commands, the variables that it takes, and its settings."""
    lines, tokens = [], []
    launcher = registry.launcher(job.settings.launch.name)
    if launcher.local:
        # one without a command could not start either; the settings are shown
        with suppress(ConfigError):
            lines.append(_line("runs", shlex.join(engine_command(job.settings, registry).argv)))
        tokens = [name for name in HUB_TOKENS if name in os.environ and launcher.needs_executable]
    return [*lines, *_variables_line(job.resolved, *tokens), *_values(job.resolved)]


def _variables_line(config: Mapping[str, Any], *names: str) -> list[str]:
    found = sorted({*_variables(config), *names})
    return [_line("takes your variables", ", ".join(found))] if found else []


def _variables(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the variables of this process that a config hands on: those it names, and the secrets of `engine.env`."""
    for key, value in leaves(config):
        if value is not None and (key.rstrip(".0123456789").endswith("_env") or key.startswith("launch.headers_env.")):
            yield str(value)
        elif key.startswith("engine.env.") and MARK in str(value):
            yield key.removeprefix("engine.env.")


def _values(config: Mapping[str, Any]) -> list[str]:
    return [
        _line(key, str(value))
        for key, value in leaves(config)
        if value is not None and (key.partition(".")[0] in SHOWN_WHOLE or isinstance(value, str))
    ]


def _line(name: str, value: str) -> str:
    return visible(f"{name}: {value}")


def _other_folder(config: Mapping[str, Any], *, here: bool) -> str | None:
    """Return why an own config is in doubt: a relative path in it names something else in this folder; null if none does."""
    if here:
        return None
    for key, value in leaves(config):
        if not isinstance(value, str) or key.startswith("study."):
            continue
        named = key.rpartition(".")[2] in PATH_KEYS
        for part in value.replace("=", ":").replace(",", ":").split(":"):
            relative = not part.startswith(("/", "~")) and (named or part.startswith(".") or "/" in part)
            if part and relative and _exists(part):
                return f"it was made in another folder, and its {key} would be {part!r} of this one"
    return None


def _exists(path: str) -> bool:
    with suppress(OSError, ValueError):
        return Path(path).exists()
    return False
