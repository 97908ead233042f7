"""The entry point of `servebench`: runs a command and turns every error of a user into one line and an exit code.

Everything heavy is imported by the command that needs it, so that `--help` and mistakes answer at once.
"""

import gc
import os
import sys
from collections.abc import Sequence
from types import TracebackType

from servebench.util.errors import ConfigError, ServebenchError

YOUNG_OBJECTS = 50_000
"""How many new objects Python's garbage collector waits for."""


def dispatch(words: Sequence[str]) -> int:
    """Run the command that the words name and return its exit code. Raises ServebenchError."""
    import click

    from servebench.cli.command import usage_message
    from servebench.cli.group import cli, with_help

    try:
        with cli.make_context("servebench", with_help(list(words))) as context:
            return int(cli.invoke(context) or 0)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        raise ConfigError(usage_message(error)) from error


def _complete(instruction: str) -> int:
    """Answer a shell that asks for completion."""
    from click.shell_completion import shell_complete

    from servebench.cli.completion import VARIABLE
    from servebench.cli.group import cli

    return shell_complete(cli, {}, "servebench", VARIABLE, instruction)


def _writes_for_others(words: Sequence[str]) -> bool:
    """Whether a command writes what the user hands on, to a file of the user's choice, and no study."""
    return bool(words) and (
        words[0] in ("compare", "export", "plugins")
        or (words[0] == "report" and any(word.partition("=")[0] == "--out" for word in words))
    )


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    import traceback

    from servebench.util.redaction import redact_text

    sys.stderr.write(redact_text("".join(traceback.format_exception(kind, error, trace))))


def main() -> int:
    """Run the command line of this process and return the exit code."""
    from servebench.util.children import protect_process
    from servebench.util.process_privacy import hide_secrets, make_private
    from servebench.util.signals import interrupts
    from servebench.util.stdio import prepare_streams

    # modules, configs and records all stay alive: collecting every 700 objects would find nothing
    gc.set_threshold(YOUNG_OBJECTS, 20, 100)
    protect_process()
    prepare_streams()
    sys.excepthook = _print_traceback
    if instruction := os.environ.get("_SERVEBENCH_COMPLETE"):
        return _complete(instruction)
    hide_secrets()
    if not _writes_for_others(sys.argv[1:]):
        make_private()
    try:
        with interrupts():
            code = dispatch(sys.argv[1:])
            sys.stdout.flush()
    except ServebenchError as error:
        from servebench.registry.shorthand import as_typed
        from servebench.report.terminal.console import commands_from_here, console
        from servebench.util.redaction import redact_text

        for line in as_typed(redact_text(str(error)), sys.argv[1:]).splitlines():
            console(sys.stderr).print(f"servebench: {commands_from_here(line)}")
        return error.exit_code
    except (RecursionError, MemoryError) as error:
        too_much = "is nested too deeply" if isinstance(error, RecursionError) else "takes more memory than there is"
        sys.stderr.write(f"servebench: a file, an override or an answer {too_much}\n")
        return ServebenchError.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("servebench: interrupted\n")
        return 130
    except BrokenPipeError:
        # the reader of our output has closed it; Python would complain again while it shuts down
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


if __name__ == "__main__":
    raise SystemExit(main())
