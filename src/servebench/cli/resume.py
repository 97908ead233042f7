"""`servebench resume`."""

from __future__ import annotations

from collections.abc import Sequence

from servebench.registry.registry import registry
from servebench.store.studies import OUTPUTS_WORD, chosen, take_outputs
from servebench.study.resume import FAILED_WORD, _newest_unfinished
from servebench.util.errors import ConfigError

HERE_WORD = "--here"


def resume(words: Sequence[str]) -> int:
    """`resume [STUDY] [--failed] [--here]`: the study named, else the newest in `outputs/` that is not finished.

    Runs and points that are done are not done again; those that were cut off are; failed runs only with `--failed`. A
    study of a cluster goes on there, with `--here` on this machine.
    Returns the exit code, as a study's own. Raises ConfigError, PreflightError, StoreError.
    """
    from servebench.study.study import continue_study

    outputs, rest = take_outputs([word for word in words if word not in (FAILED_WORD, HERE_WORD)])
    if len(rest) > 1:
        raise ConfigError(
            f"resume takes one study, {FAILED_WORD}, {HERE_WORD} and {OUTPUTS_WORD} DIR, not: {' '.join(words)}"
        )
    folder = chosen([*rest, OUTPUTS_WORD, str(outputs)])[0] if rest else _newest_unfinished(outputs)
    return continue_study(folder, registry(), retry_failed=FAILED_WORD in words, here=HERE_WORD in words)
