"""`servebench work`: one run of a stored plan, here and now."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from servebench.cluster.agent import execute_order
from servebench.contracts.cluster import RunOrder
from servebench.store import (
    read_study,
)
from servebench.util.errors import ConfigError


def work(words: Sequence[str]) -> int:
    """`work STUDY RUN`: one run of a stored plan, here and now: what a job of a scheduler that servebench does not know
    may call. Returns the exit code, as a study's own. Raises ConfigError, StoreError."""
    from servebench.cli.words import OUTPUTS
    from servebench.run.exit_codes import exit_code
    from servebench.store import outputs_folder
    from servebench.store.studies import named_studies

    if len(words) != 2:
        raise ConfigError(f"work takes a study and one of its runs, not: {' '.join(words) or 'nothing'}")
    folder = named_studies(words[:1], outputs_folder(OUTPUTS))[0]
    state = read_study(folder)
    if words[1] not in state.runs:
        raise ConfigError(f"{folder.name} has no run '{words[1]}'; it has {', '.join(state.runs)}")
    order = RunOrder(
        study=str(folder.path),
        run=words[1],
        title=words[1],
        ticket=state.ticket,
        gpus=0,
        runs_per_machine=None,
        cluster_gives_gpus=True,
    )
    answer = execute_order(order)
    if answer.outcome is None:
        raise ConfigError(answer.refused or "refused")
    sys.stderr.write(f"{words[1]}: {answer.outcome.status}{f': {e}' if (e := answer.outcome.error) else ''}\n")
    return exit_code(answer.outcome)
