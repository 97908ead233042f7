"""The errors that users meet: each becomes one line and an exit code, never a traceback.

A message is lower case, has no full stop, names the offending value and where it comes from, and says what to do next.
Any other exception is a defect of servebench and keeps its traceback.
"""

import errno
from enum import StrEnum
from typing import ClassVar, Literal, Self

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOTDIR: "a file is in the place of a folder",
    errno.EEXIST: "a file is in its place",
}


def reason_of(error: OSError) -> str:
    """Return why the system refused something, in a few words."""
    reason = error.strerror or str(error)
    return REASONS.get(error.errno or 0, reason[:1].lower() + reason[1:])


LINE_MAX = 4000


class FailureKind(StrEnum):
    """Why a run failed, as stored in `failure` of run.json. An unknown value in a file reads as `other`."""

    CONFIG = "config"
    PREFLIGHT = "preflight"

    DIED = "died"
    NOT_READY = "not_ready"
    OUT_OF_MEMORY = "out_of_memory"
    MODEL_MISSING = "model_missing"
    IMAGE_MISSING = "image_missing"
    PORT_IN_USE = "port_in_use"
    WRONG_CUDA = "wrong_cuda"
    UNKNOWN_FLAG = "unknown_flag"
    UNREACHABLE = "unreachable"
    UNAUTHORIZED = "unauthorized"
    WRONG_MODEL = "wrong_model"
    SILENT = "silent"
    ENDPOINT = "endpoint"
    """A server that servebench did not start cannot be used any more. Finished points stand; `resume` measures the rest."""
    OTHER = "other"

    LOAD = "load"
    WORKER = "worker"
    """A load worker died in some points. The others stand; `resume` measures these again without --failed."""

    STORE = "store"
    DAMAGED = "damaged"
    QUALITY = "quality"
    LEDGER = "ledger"
    """Requests planned, sent, recorded and stored do not add up."""

    INTERRUPTED = "interrupted"
    KILLED = "killed"
    LOST = "lost"
    """A job of a cluster ended without a result."""
    INTERNAL = "internal"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls("other") if isinstance(value, str) else None

    @property
    def exit_code(self) -> int:
        """What the command returns for this kind. Every kind without a code of its own has that of the engine."""
        return _EXIT_CODES.get(self, _ENGINE_EXIT_CODE)


Remedy = Literal["resume", "again", "mend"]
_REMEDIES: dict[FailureKind, Remedy] = {
    FailureKind.WORKER: "resume",
    FailureKind.ENDPOINT: "resume",
    FailureKind.CONFIG: "mend",
    FailureKind.UNKNOWN_FLAG: "mend",
    FailureKind.WRONG_MODEL: "mend",
}


def remedy_of(kind: FailureKind | str | None) -> Remedy:
    """Return what may do better than a failed run: `resume`, whose cause passes by itself; `again`, which is `resume --failed`;
    or `mend`, since the same settings would fail again."""
    return "again" if kind is None else _REMEDIES.get(FailureKind(kind), "again")


_ENGINE_EXIT_CODE = 4
_EXIT_CODES = {
    FailureKind.CONFIG: 2,
    FailureKind.PREFLIGHT: 3,
    FailureKind.LOAD: 5,
    FailureKind.WORKER: 5,
    FailureKind.STORE: 6,
    FailureKind.DAMAGED: 6,
    FailureKind.QUALITY: 8,
    FailureKind.INTERRUPTED: 130,
    FailureKind.INTERNAL: 1,
}


class ServebenchError(Exception):
    """Base of every error that is shown to the user as one line. `kind` is the failure of a run that the error ends; `exit_code`
    follows from it."""

    kind = FailureKind.OTHER
    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        """Return the lines, each cut to LINE_MAX: a message may repeat what a hostile file or server says."""
        return "\n".join(
            line if len(line) <= LINE_MAX else f"{line[: LINE_MAX // 2]} [...] {line[-LINE_MAX // 2 :]}"
            for line in super().__str__().split("\n")
        )

    def __init_subclass__(cls) -> None:
        """Derive the exit code of the class from its kind."""
        cls.exit_code = cls.kind.exit_code


class ConfigError(ServebenchError):
    """The command or the config cannot be run as it is. `faults` holds one line each."""

    kind = FailureKind.CONFIG

    def __init__(self, faults: list[str] | str) -> None:
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        super().__init__("\n".join(self.faults))


class PreflightError(ServebenchError):
    """The machine is not ready for the run: a missing executable, a port in use, a full disk."""

    kind = FailureKind.PREFLIGHT


class EngineError(ServebenchError):
    """The engine did not start, died or never answered. A kind that servebench does not know counts as `other`."""

    def __init__(self, message: str, *, kind: FailureKind | str = FailureKind.OTHER) -> None:
        self.kind = FailureKind(kind)
        super().__init__(message)


class LoadError(ServebenchError):
    """The load could not be driven: a worker died, or the client ran out of sockets."""

    kind = FailureKind.LOAD


class QualityError(ServebenchError):
    """The questions could not be asked or judged: questions are missing, or a harness failed."""

    kind = FailureKind.QUALITY


class StoreError(ServebenchError):
    """Results could not be written or read: the disk is full, a folder is not writable, a file is damaged."""

    kind = FailureKind.STORE


class DamagedError(StoreError):
    """A stored file exists but does not hold what was written. It has to be written again."""

    kind = FailureKind.DAMAGED


class Interrupted(ServebenchError):
    """The user asked to stop. What was measured is kept."""

    kind = FailureKind.INTERRUPTED
