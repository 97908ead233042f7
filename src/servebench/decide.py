"""From stored numbers to a decision: the verbs that read outputs and need no engine.

Each verb parses its words, has `read` load what they name, `score` judge it and `report` show it. Returns an exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from servebench import read
from servebench.contracts.stored import StudyData
from servebench.errors import ConfigError


def ls(words: Sequence[str]) -> int:
    """`ls [key=value ...] [--json]`: the runs that are on disk. Raises ConfigError."""
    from servebench.report.listing import list_runs

    outputs, rest = read.take_outputs(words)
    as_json, rest = read.take_flag(rest, "--json")
    read.no_options("ls", rest, ("--json", "--outputs DIR"))
    studies = read.select(outputs, rest)
    if not studies and not as_json:
        asked = f" that meet {' '.join(rest)}" if rest else ""
        sys.stdout.write(f"there are no runs{asked} in {outputs}\n")
        return 0
    list_runs(studies, as_json=as_json)
    return 0


def show(words: Sequence[str]) -> int:
    """`show RUN|STUDY [--json]`: what it was and what came of it. Raises ConfigError."""
    from servebench.report.listing import show_run, show_study
    from servebench.score.remedies import REMEDIES

    outputs, rest = read.take_outputs(words)
    as_json, rest = read.take_flag(rest, "--json")
    read.no_options("show", rest, ("--json", "--outputs DIR"))
    if len(rest) != 1:
        raise ConfigError(f"show takes one run or study, not {len(rest)}; 'servebench ls' lists them")
    found = read.find(rest[0], outputs)
    if isinstance(found, StudyData):
        if len(found.runs) != 1:
            show_study(found, as_json=as_json)
            return 0
        found = found.runs[0]
    show_run(found, REMEDIES, as_json=as_json)
    return 0
