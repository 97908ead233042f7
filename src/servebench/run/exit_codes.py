"""Exit codes of the command by what ended a run."""

from __future__ import annotations

from servebench.contracts.results import WORKER_FAILURE, RunOutcome
from servebench.util.errors import (
    ConfigError,
    EngineError,
    Interrupted,
    LoadError,
    PreflightError,
    QualityError,
    StoreError,
)

EXIT_CODES = {
    "config": ConfigError.exit_code,
    "preflight": PreflightError.exit_code,
    "load": LoadError.exit_code,
    WORKER_FAILURE: LoadError.exit_code,
    "store": StoreError.exit_code,
    "damaged": StoreError.exit_code,
    "quality": QualityError.exit_code,
}
"""By a run's `failure`; every other failure is the engine's."""


def exit_code(outcome: RunOutcome) -> int:
    """Return the exit code of a run: 0 if it is finished, else that of what ended it."""
    return exit_code_of(outcome.status, outcome.failure)


def exit_code_of(status: str, failure: str | None) -> int:
    """Return the exit code for the status and failure of a run, as stored."""
    if status == "finished":
        return 0
    if failure == "interrupted":
        return Interrupted.exit_code
    return EXIT_CODES.get(failure or "", EngineError.exit_code)
