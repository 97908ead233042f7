"""Hydra's own information (`--cfg`, `--info`, `--hydra-help`, `--shell-completion`), printed by Hydra itself."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from servebench.config.faults import one_line
from servebench.config.folders import VERSION_BASE, search_path
from servebench.config.jobs import compose_faults
from servebench.config.words import Words, parse_words
from servebench.registry.conf import conf_dir
from servebench.registry.registry import Registry
from servebench.util.errors import ConfigError

_RAISE = "HYDRA_FULL_ERROR"
"""With it Hydra raises its errors instead of printing them with a traceback and leaving the process."""


def hydra_information(arguments: Sequence[str], registry: Registry) -> int:
    """Let Hydra print what was asked, to stdout; makes no folder. Returns the exit code, 0.

    Raises ConfigError with one line for each thing that is wrong.
    """
    words = parse_words(arguments)
    if words.multirun:
        raise ConfigError(f"{words.information[0]} shows one config: leave out -m")
    overrides = list(words.overrides)
    if not words.wants("--shell-completion", "-sc", "--hydra-help"):
        overrides, faults = compose_faults(words, registry)
        if faults:
            raise ConfigError([fault.text for fault in faults])
    argv = [sys.argv[0], *overrides, *words.information]
    with search_path(registry, words.config_dirs), _environment(_RAISE, "1"), _argv(argv):
        return _run(words)


def _run(words: Words) -> int:
    """Run Hydra's command line. What it writes to stderr is passed on, or becomes the error's line."""
    main = hydra.main(config_path=str(conf_dir()), config_name=words.config_name, version_base=VERSION_BASE)
    errors = io.StringIO()
    try:
        with redirect_stderr(errors):
            main(_nothing)()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise ConfigError(_last_line(errors.getvalue())) from end
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(one_line(error)) from error
    sys.stderr.write(errors.getvalue())
    return 0


def _nothing(config: DictConfig) -> None:
    """The task that Hydra is given; asked for information, it never calls it."""
    del config


def _last_line(text: str) -> str:
    """Of a usage message, the line that says what is wrong, without the program's name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[-1] if lines else "the information cannot be shown"
    return line.partition(": error: ")[2] or line


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _argv(argv: list[str]) -> Iterator[None]:
    """Hydra reads the command line from `sys.argv` and from nowhere else."""
    before = sys.argv
    sys.argv = argv
    try:
        yield
    finally:
        sys.argv = before
