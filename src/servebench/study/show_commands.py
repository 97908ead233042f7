"""Print the engine commands of a study without starting anything (`--cfg command`)."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from servebench.engine.describe import describe_command
from servebench.engine.pool import launch_context
from servebench.registry.registry import Registry
from servebench.run.jobs import jobs_of
from servebench.util.cache import cache_folder
from servebench.util.errors import PreflightError


def show_commands(words: Sequence[str], registry: Registry) -> int:
    """Print the exact command of each job's engine, quoted for the shell, and return 0.

    Uses the engine's default port where the config leaves the port open. What is missing on this machine is printed to
    standard error. Raises ConfigError, and PreflightError for a setting that the engine does not support.
    """
    for job in jobs_of(words, registry):
        settings = job.settings
        engine = registry.engine(settings.engine.name)
        with_port = replace(settings, engine=replace(settings.engine, port=settings.engine.port or engine.default_port))
        context = launch_context(with_port, cache_folder())
        launcher = registry.launcher(settings.launch.name)
        refused = engine.unsupported_settings(context)
        if refused:
            raise PreflightError("\n".join(refused))
        faults = engine.check(context) if launcher.needs_executable else []
        sys.stderr.writelines(f"servebench: {fault}\n" for fault in faults)
        before = engine.prepare_commands(context) if launcher.needs_executable else ()
        for command in (*before, launcher.command(engine, context, settings.launch)):
            sys.stdout.write(describe_command(command) + "\n")
    return 0
