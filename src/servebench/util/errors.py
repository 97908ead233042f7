"""The errors a user can meet: each becomes one line and an exit code, never a traceback.

A message is lower case, has no full stop, names the offending value and where it came from, and says what to do next.
Anything that is not one of these is a defect of servebench and keeps its traceback.
"""

STRANGE = "\N{REPLACEMENT CHARACTER}"


def in_one_line(text: str, most: int) -> str:
    """What a stranger (a server, a tool) said, in one line of at most `most` characters, none of which a terminal obeys."""
    line = " ".join(text[: 4 * most].split())[:most]
    return line if line.isprintable() else "".join(one if one.isprintable() else STRANGE for one in line)


class ServebenchError(Exception):
    """Base of every error that is told to the user in one line.

    Attributes:
        exit_code: what the command returns when this error ends it.
    """

    exit_code = 1


class ConfigError(ServebenchError):
    """What was asked cannot be run: change the command or the config. `faults` holds one line each."""

    exit_code = 2

    def __init__(self, faults: list[str] | str) -> None:
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        super().__init__("\n".join(self.faults))


class PreflightError(ServebenchError):
    """The machine is not ready for the run: a missing executable, a port in use, a full disk."""

    exit_code = 3


class EngineError(ServebenchError):
    """The engine did not start, died or never answered. `log_tail` holds its last lines.

    `kind` is a short machine-readable reason: `died`, `not_ready`, `out_of_memory`, `model_missing`, `port_in_use`,
    `wrong_cuda`, `unknown_flag`, `unreachable`, `unauthorized`, `wrong_model`, `silent` or `other`.
    """

    exit_code = 4

    def __init__(self, message: str, *, kind: str = "other", log_tail: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.log_tail = log_tail
        super().__init__(message)


class LoadError(ServebenchError):
    """The load could not be driven: a worker died, or the client ran out of sockets."""

    exit_code = 5


class QualityError(ServebenchError):
    """The answers could not be asked for or judged: questions are missing, or a harness failed."""

    exit_code = 8


class StoreError(ServebenchError):
    """Results could not be written or read: the disk is full, a folder is not writable, a file is broken."""

    exit_code = 6


class DamagedError(StoreError):
    """A stored file is there and holds something else than what was written. Writing it anew is the only remedy."""


class Interrupted(ServebenchError):
    """The user asked to stop. What was measured is kept."""

    exit_code = 130
