"""How far a study and its runs are, in two small JSON files that are always whole."""

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil

from servebench.contracts.results import SCHEMA_VERSION
from servebench.store.files import VERSION_KEY, object_in, of_this_version, read_stored, validated, write_text
from servebench.store.layout import RunFolder, StudyFolder, check_plain
from servebench.store.seal import Origin, origin_of, sha256_of, signed
from servebench.util.errors import FailureKind, StoreError
from servebench.util.redaction import redact

UNFINISHED = "running"
START_TICKS = 19
"""Which of the fields after a process's name in its `stat` says when it started (proc_pid_stat(5), field 22)."""


def process_of(pid: int) -> str:
    """Return what tells a process from any other that has or had its number: the boot of the machine, and the ticks from there to
    its start. Both stay as they are when somebody sets the clock. Raises OSError."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    # the name of the program, in parentheses, may have spaces of its own
    after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
    return f"{boot}+{int(after_name.split()[START_TICKS])}"


@dataclass(frozen=True, kw_only=True)
class StudyState:
    """`study.json`. `runs` are the names of the run folders in order; `host`, `pid` and `process` (`process_of`) name the process
    at work. `launcher` is where the runs are done (empty: there); `ticket` is what its orders to other machines carry.
    `budget_s` is for how long engines may run where `resume --budget` or `study.starts=auto` has said so, instead of the plan's
    `study.budget`. `expected_s` is how long the study takes as it was announced; None where that is unknown, or not the time of
    this command (a cluster, virtual time, a study that was continued)."""

    study_id: str
    words: tuple[str, ...]
    runs: tuple[str, ...]
    status: str = UNFINISHED
    servebench_version: str = ""
    tracking: dict[str, Any] = field(default_factory=dict)
    launcher: dict[str, Any] = field(default_factory=dict)
    budget_s: float | None = None
    expected_s: float | None = None
    ticket: str = ""
    host: str = field(default_factory=platform.node)
    started_s: float = field(default_factory=time.time)
    ended_s: float | None = None
    pid: int = field(default_factory=os.getpid)
    process: str = field(default_factory=lambda: process_of(os.getpid()))

    @property
    def scope(self) -> str:
        """What other files of the study are signed for, so that those of another study cannot take their place."""
        return repr(self.started_s)

    def at_work(self) -> bool:
        """Whether the process that wrote this still runs it. Of a process of another host nothing is known: False."""
        if self.status != UNFINISHED or self.host not in ("", platform.node()):
            return False
        try:
            # a killed process that its parent has not asked about yet still has a pid
            at_work = psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
            return at_work and self.process == process_of(self.pid)
        except (psutil.Error, OSError, ValueError, OverflowError):
            return False


@dataclass(frozen=True, kw_only=True)
class RunState:
    """`run.json`. `overrides` are those of the run's job, `error` the message that the user saw."""

    run_id: str
    title: str
    overrides: tuple[str, ...]
    status: str = UNFINISHED
    error: str | None = None
    failure: FailureKind | None = None
    started_s: float = field(default_factory=time.time)
    ended_s: float | None = None


State = TypeVar("State", StudyState, RunState)


def _read(path: Path, kind: type[State], what: Literal["study", "run"]) -> tuple[State, dict[str, Any]]:
    try:
        stored = object_in(read_stored(path), path)
    except FileNotFoundError as error:
        raise StoreError(f"{path.parent} is no {what}: it has no {path.name}") from error
    document = of_this_version(stored, path)
    del document[VERSION_KEY]
    return validated(kind, document, path), stored


def _document(state: State) -> dict[str, Any]:
    return {VERSION_KEY: SCHEMA_VERSION, **redact(asdict(state))}


def write_study(folder: StudyFolder, state: StudyState, *, adopted_plan: str | None = None) -> None:
    """Write `study.json`, signed together with the plan: a new one, this user's own, or any whose plan, by its SHA-256, the user
    has adopted. Raises StoreError."""
    document = _document(state)
    # what is rewritten in a stranger's study must not become this user's
    plan = sha256_of(folder.plan) if adopted_plan is None else adopted_plan
    before = Origin(None) if adopted_plan is not None or not folder.state.exists() else study_origin(folder, plan)
    if before.own:
        document = signed("study", document, plan, folder=before.folder)
    write_text(folder.state, json.dumps(document, indent=2) + "\n")


def study_origin(folder: StudyFolder, plan: str) -> Origin:
    """Return who wrote `study.json` and the plan with this SHA-256."""
    try:
        return origin_of("study", object_in(read_stored(folder.state), folder.state), plan)
    except (OSError, StoreError) as error:
        return Origin(str(error))


def read_study(folder: StudyFolder) -> StudyState:
    """Read `study.json`. Raises StoreError, also for names and links that lead out of the study."""
    return read_signed_study(folder, "")[0]


def read_signed_study(folder: StudyFolder, plan: str) -> tuple[StudyState, Origin]:
    """Return `study.json`, and who wrote it and the plan with this SHA-256. Raises StoreError as `read_study` does."""
    check_plain(folder.path)
    state, document = _read(folder.state, StudyState, "study")
    for name in state.runs:
        folder.run(name)
    return state, origin_of("study", document, plan)


def write_run(folder: RunFolder, state: RunState) -> None:
    """Write `run.json`. Raises StoreError."""
    write_text(folder.state, json.dumps(_document(state), indent=2) + "\n")


def read_run(folder: RunFolder) -> RunState:
    """Read `run.json`. Raises StoreError."""
    return _read(folder.state, RunState, "run")[0]
