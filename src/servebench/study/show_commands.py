"""Print the engine commands of a study without starting anything (`--cfg command`)."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

from servebench.contracts.engine import Command, Engine, LaunchContext
from servebench.contracts.settings import RunSettings
from servebench.engine.pool import launch_context
from servebench.registry.registry import Registry
from servebench.report.terminal.console import say
from servebench.run.preflight import jobs_of
from servebench.util.cache import cache_folder
from servebench.util.errors import PreflightError
from servebench.util.redaction import redact
from servebench.util.secret_patterns import MARK

SPANS_PORT = 4318
"""Shown where the config leaves the port of spans open: OpenTelemetry's own."""


def show_commands(words: Sequence[str], registry: Registry) -> int:
    """Print the exact command of each job's engine, quoted for the shell, and return 0.

    Uses the engine's default port where the config leaves the port open. What is missing on this machine is printed to
    standard error. Raises ConfigError, and PreflightError for a setting that the engine does not support.
    """
    for job in jobs_of(words, registry):
        settings = job.settings
        engine, launcher = registry.engine(settings.engine.name), registry.launcher(settings.launch.name)
        context = _context(settings, engine)
        if refused := engine.unsupported_settings(context):
            raise PreflightError("\n".join(refused))
        for fault in engine.check(context) if launcher.needs_executable else ():
            say(f"servebench: {fault}")
        sys.stdout.write(describe_command(engine_command(settings, registry)) + "\n")
    return 0


def engine_command(settings: RunSettings, registry: Registry) -> Command:
    """Return the command that starts the engine, without starting anything. Raises ConfigError."""
    engine, launcher = registry.engine(settings.engine.name), registry.launcher(settings.launch.name)
    return launcher.command(engine, _context(settings, engine), settings.launch)


def _context(settings: RunSettings, engine: Engine) -> LaunchContext:
    port = settings.engine.port or engine.default_port
    # a free port would be looked for at the host that a stranger's config names
    return launch_context(
        replace(settings, engine=replace(settings.engine, port=port)), cache_folder(), lambda _: SPANS_PORT
    )


def describe_command(command: Command) -> str:
    """Return the command as one quoted line of shell, with its additional variables in front and secrets redacted."""
    start = ["cd", shlex.quote(str(command.cwd)), "&&"] if command.cwd is not None else []
    variables = [f"{name}={_quoted(value)}" for name, value in redact(dict(command.env)).items()]
    return " ".join([*start, *variables, *map(_quoted, redact(list(command.argv)))])


def _quoted(word: str) -> str:
    rest = word.replace(MARK, "x")
    return word if MARK in word and shlex.quote(rest) == rest else shlex.quote(word)
