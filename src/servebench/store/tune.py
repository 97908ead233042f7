"""The files of `servebench tune` in a study's folder: `tune.json`, with the question and what no table holds."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from servebench.contracts.results import SCHEMA_VERSION
from servebench.contracts.tuning import Candidate, RefusedCandidate, Result, TuneQuestion
from servebench.store.files import object_in, read_stored, validated, write_text
from servebench.store.layout import StudyFolder
from servebench.store.seal import FIELD, Origin, origin_of, signed
from servebench.store.state import StudyState
from servebench.util.errors import StoreError, reason_of
from servebench.util.redaction import redact

KIND = "tune"


@dataclass(frozen=True, kw_only=True)
class TuneState:
    """`tune.json`. `levels` are the load levels at which the objective counts, busiest first; `more` is what `--continue` has
    added to the budget, in `continued` commands. `noted` are the results, by step, that no table of a run holds: of starts that
    failed, and of answers that were compared. `space_size` is the number of settings that a whole grid would have; `quality` is
    the config of the test that a candidate must pass which may change answers. `proposed`: the proposals of what limits stock
    are among the candidates. `slices`: in the finals the engines take turns, slice by slice, where they can."""

    question: TuneQuestion
    levels: tuple[float, ...]
    candidates: tuple[Candidate, ...]
    refused: tuple[RefusedCandidate, ...] = ()
    spaces: tuple[str, ...] = ()
    space_size: int = 0
    quality: dict[str, Any] = field(default_factory=dict)
    more: float = 0.0
    continued: int = 0
    noted: dict[str, Result] = field(default_factory=dict)
    proposed: bool = False
    slices: bool = False

    @property
    def budget(self) -> float:
        """The whole budget: engine starts for `tune.trials`, else seconds."""
        question = self.question
        return self.more + (float(question.trials) if question.trials is not None else question.budget_s)

    def stock_of(self, candidate: Candidate) -> Candidate:
        """Return the stock settings of a candidate's engine. Raises StoreError."""
        found = next((one for one in self.candidates if one.engine == candidate.engine), None)
        if found is None:
            raise StoreError(f"the tune has no settings of engine={candidate.engine}, which '{candidate.name}' changes")
        return found


def is_tune(folder: StudyFolder) -> bool:
    """Return whether a study is one of `servebench tune`."""
    return folder.tune.exists()


def write_tune(folder: StudyFolder, state: TuneState, study: StudyState) -> None:
    """Write `tune.json` of this study, without secrets, and signed: the state of a stranger's is shown and adopted before it is
    changed. Raises StoreError."""
    document = {"schema_version": SCHEMA_VERSION, **redact(json.loads(json.dumps(asdict(state), default=str)))}
    write_text(folder.tune, json.dumps(signed(KIND, document, study.scope), indent=1) + "\n")


def read_signed_tune(folder: StudyFolder, scope: str) -> tuple[TuneState, Origin]:
    """Return `tune.json`, and who wrote it for the study with this scope. Raises StoreError."""
    try:
        document = object_in(read_stored(folder.tune), folder.tune)
    except FileNotFoundError as error:
        raise StoreError(f"{folder.tune} cannot be read: {reason_of(error)}") from error
    origin = origin_of(KIND, document, scope)
    bare = {name: value for name, value in document.items() if name not in (FIELD, "schema_version")}
    state = validated(TuneState, bare, folder.tune)
    if not state.candidates or not state.levels:
        raise StoreError(f"{folder.tune} cannot be read: it has no candidates or no levels")
    return state, origin
