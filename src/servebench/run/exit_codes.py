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
    """0 for a run that is finished, else by what ended it."""
    if outcome.status == "finished":
        return 0
    if outcome.failure == "interrupted":
        return Interrupted.exit_code
    return EXIT_CODES.get(outcome.failure or "", EngineError.exit_code)
