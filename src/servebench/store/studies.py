"""What is on disk, for everything that only looks: studies and runs as frozen objects, tables as pandas frames.

Nothing here starts, sends or changes anything. A run that is missing, failed or broken is a `RunData` with faults, never
an error: one bad folder must not hide the others. Columns and manifest keys that this version does not know are kept as
they are, and those that an older version did not write are null.
"""

from __future__ import annotations

import operator
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servebench.contracts.point_row import PointRow
from servebench.contracts.stored import FACTS, RunData, StudyData, mapping, value_at
from servebench.store.files import object_in, of_this_version
from servebench.store.graded import read_quality
from servebench.store.hold import is_abandoned
from servebench.store.layout import SET_ASIDE, RunFolder, StudyFolder, check_plain, is_name
from servebench.store.state import UNFINISHED
from servebench.store.tables import read_frame, read_requests, read_rows
from servebench.util.bounded_file import STATE_BYTES_MAX, STUDY_BYTES_MAX, read_bytes
from servebench.util.errors import ConfigError, StoreError, reason_of
from servebench.util.short_id import LAST, short_id

if TYPE_CHECKING:
    import pandas as pd


KILLED = "servebench was killed; the requests that had ended are kept"
RowReader = Callable[[RunFolder], Sequence[PointRow]]
"""Returns the points of a run. Raises StoreError."""


def _heavy(
    folder: RunFolder, name: str, columns: Sequence[str] | None = None, request_id: str | None = None
) -> pd.DataFrame:
    """Return a heavy table of a run by name, as `contracts.stored.Tables`. Raises StoreError for a broken one."""
    if name == "requests":
        return read_requests(folder, columns, request_id)
    if name == "quality":
        return read_quality(folder)
    return read_frame(folder.path / f"{name}.parquet")


def _log(folder: RunFolder, manifest: Mapping[str, Any]) -> Path | None:
    name = manifest.get("engine_log")
    if not name:
        return folder.engine_log if folder.engine_log.is_file() else None
    run, _, file = str(name).rpartition("/")
    if not (is_name(file) and (not run or is_name(run))):
        return None
    owner = folder.path.parent / run
    try:
        if owner != folder.path:
            check_plain(owner, deep=False)
    except StoreError:
        return None
    return owner / file if (owner / file).is_file() else None


def read_document(path: Path, faults: list[str], bytes_max: int = STATE_BYTES_MAX) -> dict[str, Any]:
    """Return the object in a JSON file, empty, with a fault, if there is none or it is of another."""
    name = Path(path.name)
    try:
        return of_this_version(object_in(read_bytes(path, bytes_max), name), name)
    except FileNotFoundError:
        faults.append(f"{name} is missing")
    except OSError as error:
        faults.append(f"{name} cannot be read: {reason_of(error)}")
    except StoreError as error:
        faults.append(str(error))
    return {}


def load_run(path: Path, read: RowReader = read_rows, plan: Callable[[], Mapping[str, Any]] = dict) -> RunData:
    """Return the run in a folder, whatever is in it; `read` reads its points, on first use. One without a
    manifest, such as one that never started, has what its study's `plan` has for its name instead."""
    folder = RunFolder(path)
    run = RunData(study_id=path.parent.name, name=path.name, path=path, rows=tuple, tables=lambda *_: _no_rows())
    try:
        check_plain(path)
    except StoreError as error:
        return replace(run, noted=(str(error),))
    if not path.exists() and (planned := mapping(plan().get(path.name))):
        return replace(run, manifest=planned)
    faults: list[str] = []
    state = read_document(folder.state, faults)
    manifest = read_document(folder.manifest, faults) or mapping(plan().get(path.name))
    return replace(
        run,
        state=state,
        manifest=manifest,
        rows=partial(read, folder),
        tables=partial(_heavy, folder),
        engine_log=_log(folder, manifest),
        noted=tuple(faults),
    )


def _no_rows() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame()


def load_study(path: Path, read: RowReader = read_rows) -> StudyData:
    """Return the study in a folder with all its runs: those it planned, and any other that holds one. `read` reads points."""
    faults: list[str] = []
    try:
        check_plain(path, deep=False)
    except StoreError as error:
        return StudyData(study_id=path.name, path=path, faults=(str(error),))
    state = read_document(path / "study.json", faults, STUDY_BYTES_MAX)
    names, bad = _run_names(path, state)
    if bad:
        faults.append(f"study.json has a run named {bad[0]!r}, which is not the name of a folder in it")
    plan = lru_cache(maxsize=1)(partial(_plan_of, path, state))
    loaded = tuple(load_run(path / name, read, plan) for name in names)
    if UNFINISHED in [state.get("status"), *(run.status for run in loaded)] and is_abandoned(path):
        # its process was killed before it could say so
        cut = {"status": "interrupted"}
        state, killed = {**state, **cut}, {**cut, "error": KILLED}
        loaded = tuple(
            replace(one, state={**one.state, **killed}) if one.status == UNFINISHED else one for one in loaded
        )
    return StudyData(study_id=path.name, path=path, state=state, runs=loaded, faults=tuple(faults))


def _plan_of(study: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """What the plan of a study says of its runs, by name, under the keys of a manifest; nothing where it cannot be read."""
    planned = read_document(study / "plan.json", []).get("runs")
    runs = [mapping(run) for run in planned] if isinstance(planned, list) else []
    words = state.get("words")
    return {
        str(run.get("name")): {"words": words, **{key: run.get(key) for key in ("overrides", "config")}} for run in runs
    }


def _run_names(study: Path, state: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of a study's runs in order, planned ones first, and planned names that no folder can have."""
    runs = state.get("runs")
    planned = [str(name) for name in runs] if isinstance(runs, list) else []
    found = [child.name for child in sorted(study.iterdir()) if _is_run(child) and SET_ASIDE not in child.name]
    good = [name for name in planned if is_name(name)]
    return list(dict.fromkeys([*good, *found])), [name for name in planned if not is_name(name)]


def _is_run(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in ("run.json", "manifest.json", "points.parquet"))


def _is_study(path: Path) -> bool:
    return path.is_dir() and ((path / "study.json").is_file() or any(_is_run(child) for child in path.iterdir()))


def study_paths(outputs: Path) -> list[Path]:
    """Return the studies of an outputs folder, in the order in which they were started."""
    states = {
        path: {} if path.is_symlink() else read_document(path / "study.json", [], STUDY_BYTES_MAX)
        for path in _studies_in(outputs)
    }
    return sorted(states, key=lambda path: _place(path, states[path]))


def _studies_in(outputs: Path) -> list[Path]:
    if not outputs.is_dir():
        return []
    return [path for path in outputs.iterdir() if not path.name.startswith(".") and _is_study(path)]


def _place(study: Path, state: Mapping[str, Any]) -> tuple[float, str]:
    """What studies are ordered by: when they were started, and their name."""
    started_s = state.get("started_s")
    return float(started_s) if isinstance(started_s, (int, float)) else study.lstat().st_mtime, study.name


def load_outputs(outputs: Path, read: RowReader = read_rows) -> list[StudyData]:
    """Return all studies of a folder, in the order in which they were started. `read` reads points."""
    found = [load_study(path, read) for path in _studies_in(outputs)]
    return sorted(found, key=lambda one: _place(one.path, one.state))


def load_newest(outputs: Path, most: int | None, read: RowReader = read_rows) -> tuple[list[StudyData], int]:
    """Return the newest `most` studies of a folder (None: all), and how many runs the older ones have."""
    if most is None:
        return load_outputs(outputs, read), 0
    paths = study_paths(outputs)
    return [load_study(path, read) for path in paths[-most:]], sum(len(_every_run(path)) for path in paths[:-most])


def number_runs(studies: Iterable[StudyData], older: int = 0) -> dict[str, int]:
    """Return the number of each run of a folder with these studies, by run id, by which commands take it: the oldest, before
    which there are `older` ones, has the first."""
    return {run.run_id: number for number, run in enumerate((run for one in studies for run in one.runs), older + 1)}


def _every_run(study: Path) -> list[Path]:
    """Return the folders of a study's runs in order, without a word on what is wrong; none where it holds links."""
    with suppress(StoreError):
        check_plain(study, deep=False)
        names, _ = _run_names(study, read_document(study / "study.json", [], STUDY_BYTES_MAX))
        return [study / name for name in names]
    return []


def runs_beside(found: RunData | StudyData) -> list[RunData]:
    """Return all runs in the outputs folder that holds this run or study, these included."""
    study = found.path if isinstance(found, StudyData) else found.path.parent
    return [run for one in load_outputs(study.parent) for run in one.runs]


NAMED_MAX = 6


def find(word: str, outputs: Path) -> RunData | StudyData:
    """Return the run or study that a word names: a path, a name or short id or the beginning or a part of one, `last`,
    `last~1`, `STUDY/RUN`, or the number of a run in `servebench ls`.

    Raises ConfigError when it names none or several, StoreError for links in it.
    """
    path = _find_path(word, outputs)
    if _is_run(path):
        check_plain(path.parent, deep=False)
        check_plain(path)
        return load_run(path)
    check_plain(path, deep=False)
    if not path.exists():
        return next(run for run in load_study(path.parent).runs if run.name == path.name)
    return load_study(path)


def _places(word: str, outputs: Path) -> list[Path]:
    """Return where a word may lead: a path of the user's own, through any links, or one in the outputs folder."""
    try:
        own, stored = Path(word), (outputs / word).absolute()
        return [*([own.resolve()] if own.exists() else []), *([stored] if stored.exists() else [])]
    except OSError:  # too long for a file name
        return []


def _find_path(word: str, outputs: Path) -> Path:
    for place in _places(word, outputs):
        if word and (_is_run(place) or (place.is_dir() and _is_study(place))):
            return place
    studies = study_paths(outputs)
    if last := LAST.fullmatch(word):
        back = int(last[1] or 0)
        if back < len(studies):
            return studies[-1 - back]
        count = f"only {len(studies)}" if studies else "no"
        raise ConfigError(f"there are {count} studies in {outputs}; choose another folder with --outputs DIR")
    study, slash, run = word.rpartition("/")
    if slash and study:
        return _one_of(word, run, _every_run(_find_path(study, outputs)), outputs)
    runs = [run for one in studies for run in _every_run(one)]
    every = [*studies, *runs]
    numbered = word.isdecimal() and word[0] != "0" and all(path.name != word for path in every)
    if numbered and int(word) <= len(runs):
        return runs[int(word) - 1]
    return _one_of(word, word, every, outputs)


def _one_of(asked: str, word: str, paths: Sequence[Path], outputs: Path) -> Path:
    """Return the path that a word names, exactly, by its beginning or by a part. Raises ConfigError for none and for several."""
    tests: tuple[Callable[[str, str], bool], ...] = (operator.eq, str.startswith, operator.contains)
    for test in tests:
        match = [path for path in paths if word and any(test(name, word) for name in {path.name, short_id(path.name)})]
        if len(match) == 1:
            return match[0]
        if match:
            raise ConfigError(f"'{asked}' could be {_some(_name(path, outputs) for path in match)}; say which")
    known = _some(path.name for path in study_paths(outputs)[::-1]) or "nothing"
    raise ConfigError(f"no run or study '{asked}', neither as a path nor in {outputs}, which has: {known}")


def _name(path: Path, outputs: Path) -> str:
    return str(path.relative_to(outputs)) if path.is_relative_to(outputs) else str(path)


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:NAMED_MAX]) + (f" and {len(every) - NAMED_MAX} more" if len(every) > NAMED_MAX else "")


def command_words(study: Path) -> str:
    """Return by which words a command that is run here finds a study, also when another has been made since."""
    default = study.parent.resolve() == Path("outputs").resolve()
    return shlex.quote(short_id(study.name)) + ("" if default else f" --outputs {shlex.quote(str(study.parent))}")


def runs_of(found: RunData | StudyData) -> tuple[RunData, ...]:
    """Return the runs of a study, or the run itself."""
    return found.runs if isinstance(found, StudyData) else (found,)


CONDITION_KEYS = (*FACTS, "status", "study", "run", "tool")
"""The keys of a condition, besides dotted config keys."""


def matches(run: RunData, conditions: Mapping[str, str]) -> bool:
    """Return whether a run meets the conditions. A key is one of FACTS, `status`, `study`, `run`, or a config key such
    as `engine.dtype`; a study also has its short id. A value matches the whole or, with `*`, a part of it, and commas part
    alternatives."""
    from fnmatch import fnmatchcase

    def is_met(value: str, asked: str) -> bool:
        # the whole value first: a list has commas and brackets, which a pattern reads otherwise
        patterns = [one.strip().lower() for one in asked.split(",")]
        same = value.replace(" ", "") == asked.replace(" ", "").lower()
        return same or any(value == one or fnmatchcase(value, one) for one in patterns)

    for key, asked in conditions.items():
        actual = _looked_up(run, key)
        values = ["null" if actual is None else str(actual).lower()]
        if key == "study":
            values.append(short_id(run.study_id).lower())
        if not any(is_met(value, asked) for value in values):
            return False
    return True


def _looked_up(run: RunData, key: str) -> Any:
    known = {"status": run.status, "study": run.study_id, "run": run.name, "tool": run.foreign or "servebench"}
    if key in known:
        return known[key]
    if key in FACTS:
        return run.fact(key)
    return value_at(run.config, key)


def select(studies: Sequence[StudyData], conditions: Mapping[str, str]) -> list[StudyData]:
    """Return the studies with only those runs that meet the conditions, without studies that then have no run.

    Without conditions, return every study.
    """
    if not conditions:
        return list(studies)
    selected = [replace(study, runs=tuple(run for run in study.runs if matches(run, conditions))) for study in studies]
    return [study for study in selected if study.runs]


def named_studies(names: Sequence[str], outputs: Path) -> list[StudyFolder]:
    """Return the studies that words name as for `find` (a run names its study); without words, all studies of `outputs`, in
    the order in which they were started.

    Raises ConfigError for a study that does not exist.
    """
    if not names:
        return [StudyFolder(path) for path in study_paths(outputs) if (path / "study.json").is_file()]
    return [StudyFolder(_named_study(name, outputs)) for name in names]


def _named_study(name: str, outputs: Path) -> Path:
    places = _places(name, outputs)
    if found := next((place for place in places if (place / "study.json").is_file()), None):
        return found
    if any((place / "plan.json").is_file() and not any(place.glob("*/run.json")) for place in places):
        raise ConfigError(f"'{name}' was interrupted before its first run: run its command again")
    path = _find_path(name, outputs)
    if study := next((place for place in (path, path.parent) if (place / "study.json").is_file()), None):
        return study
    raise ConfigError(f"no study named '{name}': {path} has no study.json")
