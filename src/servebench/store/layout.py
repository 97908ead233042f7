"""Where everything is: `outputs/<study>/<run>/`."""

import os
import re
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from servebench.store.files import writing
from servebench.util.errors import ConfigError, PreflightError, StoreError, reason_of
from servebench.util.short_id import STEP_S, new_short_id

SPACE_MIN_BYTES = 64 << 20
SLUG_MAX = 40
ATTEMPTS_MAX = 1000
NAME_BYTES_MAX = 200
JOBS = "jobs"
"""The folder in which submitit keeps its files; nothing in it is read as part of a study."""


def is_name(text: str) -> bool:
    """Return whether the text can name a folder in another: one printable component that is not hidden."""
    fits = 0 < len(text.encode(errors="replace")) <= NAME_BYTES_MAX
    return fits and not text.startswith(".") and "/" not in text and text.isprintable()


def check_plain(path: Path, *, deep: bool = True) -> None:
    """Check that a stored file or folder is one, and holds only such: with `deep` all below it, else its own entries.

    Raises StoreError naming a link, symbolic or hard, or a device.
    """
    try:
        facts = path.lstat()
        _check_entry(path, facts)
        left = [path] if stat.S_ISDIR(facts.st_mode) else []
        while left:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    # a file may go between the two calls: a run may be at work
                    with suppress(FileNotFoundError):
                        facts = entry.stat(follow_symlinks=False)
                        _check_entry(entry.path, facts)
                        if deep and stat.S_ISDIR(facts.st_mode) and entry.name != JOBS:
                            left.append(Path(entry.path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason_of(error)}") from error


def _check_entry(path: Path | str, facts: os.stat_result) -> None:
    mode = facts.st_mode
    kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
    if stat.S_ISREG(mode) and facts.st_nlink > 1:
        # who has the other name may be allowed less than who reads this one
        kind = f"a hard link, one of {facts.st_nlink} to its file"
    elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    raise StoreError(f"{str(path)!r} is {kind}, which is not followed in stored studies; replace it by a copy")


SET_ASIDE = ".damaged-"
"""In the name of a folder that holds the damaged files of a run that was executed again."""


class _Entry:
    """A file or folder of this name inside the folder whose attribute it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "_Folder", owner: type) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class _Folder:
    path: Path

    @property
    def name(self) -> str:
        """The folder's own name: the id of a study, or the name of a run."""
        return self.path.name


class RunFolder(_Folder):
    """The files of a run."""

    manifest = _Entry("manifest.json")
    """What was run: config, command, versions, machine."""
    state = _Entry("run.json")
    """How the run ended."""
    requests = _Entry("requests.parquet")
    """One row a request."""
    answers = _Entry("answers.parquet")
    """What was answered, one row a request."""
    parts = _Entry("parts")
    """Batches of records, until the run is over."""
    points = _Entry("points.parquet")
    """One row a point."""
    points_csv = _Entry("points.csv")
    """The same for people and other tools."""
    sessions = _Entry("sessions.csv")
    """One row a session, where the workload has jobs."""
    telemetry = _Entry("telemetry.parquet")
    """One row a reading: what the engine and the machine reported during load."""
    quality = _Entry("quality.parquet")
    """One row a question that was put to the engine."""
    engine_log = _Entry("engine.log")
    report = _Entry("report.html")
    tracking = _Entry("tracking.json")
    """What was sent to MLflow."""
    raw = _Entry("raw")
    """Spools and telemetry of phases that are not stored yet."""

    def spool(self, phase: str) -> Path:
        """Return the path of a phase's spool."""
        return self.raw / f"{phase}.spool"

    def spools(self) -> list[Path]:
        """Return the spools that exist: those of phases that were cut off."""
        return sorted(self.raw.glob("*.spool"))

    def telemetry_log(self, point: str) -> Path:
        """Return the path of the telemetry that a running point has so far."""
        return self.raw / f"{point}.telemetry"

    def telemetry_logs(self) -> list[Path]:
        """Return the logs of telemetry that exist: those of points that were cut off. Their stems are the points' names."""
        return sorted(self.raw.glob("*.telemetry"))


class StudyFolder(_Folder):
    """The files of a study."""

    state = _Entry("study.json")
    """What was planned and how far it got."""
    plan = _Entry("plan.json")
    """Its runs with their configs, as they were before the first started."""
    tune = _Entry("tune.json")
    """The question and the candidates of `servebench tune`."""
    tune_page = _Entry("tune.html")
    """Its answer as a page."""
    tracking = _Entry("tracking.json")
    """What was sent to MLflow."""
    prompts = _Entry("prompts")
    """The prompts that its runs share, if it has several."""
    summary = _Entry("summary")
    """Page, comparison and charts of the whole study."""

    def run(self, name: str) -> RunFolder:
        """Return a run's folder, which need not exist. Raises StoreError for a name that could lead elsewhere."""
        if not is_name(name):
            raise StoreError(f"{self.path} has a run named {name!r}, which is not the name of a folder in it")
        return RunFolder(self.path / name)

    def create_run(self, name: str) -> RunFolder:
        """Make a run's folder. Raises StoreError."""
        folder = self.run(name)
        with writing(folder.path):
            folder.path.mkdir(exist_ok=True)
        return folder


def slug(text: str) -> str:
    """Return text as part of a folder's name: lower case, `a-z 0-9 . -`, at most 40 characters."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:SLUG_MAX].rstrip("-.") or "study"


def outputs_folder(name: str) -> Path:
    """Return the outputs folder of the config, with `~` for the home folder. Raises ConfigError for the home of nobody."""
    try:
        return Path(name).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(f"study.dir={name}: there is no such home folder; give a path") from error


def check_writable(outputs: Path) -> None:
    """Make the outputs folder and try a file in it. Raises PreflightError naming what is in the way."""
    where = f"the outputs folder {outputs} (study.dir)"
    try:
        outputs.mkdir(parents=True, exist_ok=True)
        probe = outputs / f".probe-{os.getpid()}"
        try:
            probe.write_bytes(bytes(4096))
        finally:
            probe.unlink(missing_ok=True)
        free = shutil.disk_usage(outputs).free
    except (FileExistsError, NotADirectoryError) as error:
        raise PreflightError(
            f"{where} is not a folder: a file is in its place; choose another with study.dir="
        ) from error
    except OSError as error:
        raise PreflightError(
            f"{where} cannot be written: {reason_of(error)}; choose another with study.dir="
        ) from error
    if free < SPACE_MIN_BYTES:
        raise PreflightError(
            f"the disk of {where} has {free >> 20} MiB left, and a study needs at least {SPACE_MIN_BYTES >> 20} MiB; "
            "free some or choose another with study.dir="
        )


def create_study(outputs: Path, name: str | None, what: str) -> StudyFolder:
    """Make a study's folder: the asked name, which must be new, or a short id that is free in `outputs` and what is run.

    Raises ConfigError for a name that is taken or that no folder can have, else StoreError.
    """
    if name is not None:
        return _named_study(outputs, name)
    now_s = time.time()
    for attempt in range(ATTEMPTS_MAX):
        short = new_short_id(now_s + attempt * STEP_S)
        with writing(outputs):
            if any(outputs.glob(f"{short}*")):
                continue
            folder = StudyFolder(outputs / f"{short}_{slug(what)}")
            try:
                folder.path.mkdir(parents=True)
            except FileExistsError:
                continue
        return folder
    raise StoreError(f"cannot find a free name for a study in {outputs}")


def _named_study(outputs: Path, name: str) -> StudyFolder:
    if not is_name(name):
        raise ConfigError(
            f"study.name={name!r} cannot be a folder in {outputs}: it may hold no slash, not begin with a dot, "
            f"and have 1 to {NAME_BYTES_MAX} bytes; choose another name"
        )
    folder = StudyFolder(outputs / name)
    if folder.path.is_symlink():
        raise ConfigError(
            f"study.name={name}: {folder.path} is a symbolic link, which is not followed in stored studies; choose another "
            "name, or set study.dir to the folder above the one that it leads to"
        )
    try:
        # what a servebench that was killed in its start left is nothing yet
        taken = any(path != folder.plan and not path.name.startswith(".") for path in folder.path.iterdir())
    except FileNotFoundError:
        taken = False
    except NotADirectoryError as error:
        raise ConfigError(f"study.name={name}: {folder.path} is a file; choose another name") from error
    except OSError as error:
        raise StoreError(f"study.name={name}: {folder.path} cannot be read: {reason_of(error)}") from error
    if taken:
        raise ConfigError(f"study.name={name}: {folder.path} is there already and not empty; choose another name")
    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    return folder
