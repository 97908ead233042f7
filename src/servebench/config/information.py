"""Let Hydra print its own information: `--cfg`, `--info`, `--hydra-help`, `--shell-completion`."""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from servebench.config.arguments import Arguments, parse_arguments
from servebench.config.composition import compose_for_display
from servebench.config.folders import VERSION_BASE, search_path
from servebench.config.problems import summarize_error
from servebench.registry.conf import conf_dir
from servebench.registry.registry import Registry
from servebench.util.errors import ConfigError

_RAISE = "HYDRA_FULL_ERROR"
"""The variable that makes Hydra raise errors instead of printing a traceback and exiting."""
_JOB = (("--cfg", "job"), ("-c", "job"), ("--cfg=job",), ("-c=job",))
"""The options that print the config of a run, and nothing else."""


def print_hydra_information(arguments: Sequence[str], registry: Registry) -> int:
    """Let Hydra print the requested information to stdout, without creating a folder. Return the exit code, 0.

    Raises ConfigError with one line for each problem.
    """
    words = parse_arguments(arguments)
    if words.multirun:
        raise ConfigError(f"{words.information[0]} shows one config; leave out -m")
    overrides = list(words.overrides)
    if not words.wants("--shell-completion", "-sc", "--hydra-help"):
        prepared, problems = compose_for_display(words, registry)
        if problems:
            raise ConfigError([problem.text for problem in problems])
        if tuple(words.information) in _JOB and prepared.config is not None and not prepared.emptied:
            # what Hydra would print too, after it has composed everything again
            sys.stdout.write(OmegaConf.to_yaml(OmegaConf.masked_copy(prepared.config, _sections(prepared.config))))
            return 0
        overrides = prepared.words
    argv = [sys.argv[0], *overrides, *words.information]
    with search_path(registry, words.config_dirs), _hydra_process(argv):
        return _run(words)


def _sections(config: DictConfig) -> list[str]:
    return [str(key) for key in config if key != "hydra"]


def _run(words: Arguments) -> int:
    """Run Hydra's command line. Its stderr is passed on, or becomes the message of the ConfigError."""
    main = hydra.main(config_path=str(conf_dir()), config_name=words.config_name, version_base=VERSION_BASE)
    errors = io.StringIO()
    try:
        with redirect_stderr(errors):
            # Hydra needs a task function, and does not call it when it prints information
            main(lambda _: None)()
    except SystemExit as end:
        if end.code not in (None, 0):
            raise ConfigError(_last_line(errors.getvalue())) from end
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(summarize_error(error)) from error
    sys.stderr.write(errors.getvalue())
    return 0


def _last_line(text: str) -> str:
    """Return the line of a usage message that has the error, without the program's name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[-1] if lines else "Hydra could not print the information"
    return line.partition(": error: ")[2] or line


@contextmanager
def _hydra_process(argv: list[str]) -> Iterator[None]:
    """Replace `sys.argv`, the only place from which Hydra reads the command line, and make Hydra raise its errors."""
    before, errors = sys.argv, os.environ.get(_RAISE)
    sys.argv, os.environ[_RAISE] = argv, "1"
    try:
        yield
    finally:
        sys.argv = before
        del os.environ[_RAISE]
        if errors is not None:
            os.environ[_RAISE] = errors
