"""`servebench resume`."""

from __future__ import annotations

from collections.abc import Sequence

from servebench.cli.words import no_options, take_flag, take_outputs
from servebench.registry.registry import registry
from servebench.store.studies import named_studies
from servebench.study.resume import newest_unfinished
from servebench.util.errors import ConfigError


def resume(words: Sequence[str]) -> int:
    """`resume [STUDY] [--failed] [--here]`: the study named, else the newest in `outputs/` that is not finished.

    Runs and points that are done are not done again; those that were cut off are; failed runs only with `--failed`. A
    study of a cluster goes on there, with `--here` on this machine.
    Returns the exit code, as a study's own. Raises ConfigError, PreflightError, StoreError.
    """
    from servebench.study.study import continue_study

    outputs, rest = take_outputs(words)
    failed, rest = take_flag(rest, "--failed")
    here, rest = take_flag(rest, "--here")
    no_options("resume", rest, ("--failed", "--here", "--outputs DIR"))
    if len(rest) > 1:
        raise ConfigError(f"resume takes one study, not {len(rest)}")
    folder = named_studies(rest, outputs)[0] if rest else newest_unfinished(outputs)
    return continue_study(folder, registry(), retry_failed=failed, here=here)
