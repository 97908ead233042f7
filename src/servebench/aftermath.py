"""What can be done from disk alone, with no engine: `recover` what a killed study left, `sync` it to MLflow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from servebench.contracts.results import Record
from servebench.errors import ConfigError
from servebench.load.spool import read_spool
from servebench.phase import PhaseFacts, discard_spool
from servebench.store import (
    RecordWriter,
    RunFolder,
    StudyFolder,
    find_studies,
    outputs_folder,
    read_run,
    read_study,
    sync_study,
    tracking_uri,
    write_run,
    write_study,
)

OUTPUTS = "outputs"
SYNC_TIMEOUT_S = 10.0


def chosen(words: Sequence[str]) -> list[StudyFolder]:
    """The studies that the words name, as folders or as names in `outputs/`; without words, all of `outputs/`.

    Raises ConfigError for one that is not there.
    """
    if not words:
        return find_studies(outputs_folder(OUTPUTS))
    studies = []
    for word in words:
        places = [Path(word), outputs_folder(OUTPUTS) / word]
        found = next((place for place in places if (place / "study.json").is_file()), None)
        if found is None:
            raise ConfigError(f"'{word}' is no study: neither {places[0]} nor {places[1]} has a study.json")
        studies.append(StudyFolder(found.absolute()))
    return studies


def recover(words: Sequence[str]) -> int:
    """Turn the spools of studies that were killed into records, and mark their runs. Returns the exit code."""
    studies = [study for study in chosen(words) if not read_study(study).at_work()]
    total = 0
    for study in studies:
        for name in read_study(study).runs:
            folder = study.run(name)
            if folder.path.is_dir():
                found = recover_run(folder)
                if found:
                    sys.stdout.write(f"{study.name}/{name}: {found} requests recovered\n")
                total += found
        _mark(study)
    if not total:
        sys.stdout.write("nothing to recover\n")
    return 0


def recover_run(folder: RunFolder) -> int:
    """Store what the spools of a run hold. Returns how many requests that were."""
    records: list[Record] = []
    spools = folder.spools()
    for spool in spools:
        facts = PhaseFacts.load(spool.with_suffix(".json"))
        records += [facts.record(exchange) for exchange in read_spool(spool)]
    writer = RecordWriter(folder)
    writer.append(records)
    for spool in spools:
        discard_spool(spool)
    writer.close()
    return len(records)


def _mark(study: StudyFolder) -> None:
    """A run that says that it is running, though nobody is at work, was interrupted."""
    state = read_study(study)
    for name in state.runs:
        folder = study.run(name)
        if folder.state.exists():
            run = read_run(folder)
            if run.status == "running":
                write_run(folder, replace(run, status="interrupted", error="servebench was killed", failure="killed"))
    if state.status == "running":
        write_study(study, replace(state, status="interrupted"))


def sync(words: Sequence[str]) -> int:
    """Send studies to MLflow: all of `outputs/`, or those named. Returns 0 when all went."""
    uri_words = [word for word in words if word.startswith("--uri=")]
    studies = chosen([word for word in words if not word.startswith("--uri=")])
    asked = uri_words[-1].removeprefix("--uri=") if uri_words else None
    code = 0
    for study in studies:
        state = read_study(study)
        if state.tracking.get("name") == "none" and asked is None:
            continue
        uri = tracking_uri(asked or state.tracking.get("uri"), study.path.parent)
        experiment = str(state.tracking.get("experiment", "servebench"))
        report = sync_study(study, uri=uri, experiment=experiment, timeout_s=SYNC_TIMEOUT_S)
        if report.error is not None:
            sys.stderr.write(f"servebench: {study.name}: {report.error}\n")
            code = 1
            break
        sys.stdout.write(f"{study.name}: {len(report.sent)} sent, {len(report.unchanged)} unchanged\n")
    if not studies:
        sys.stdout.write("there are no studies to send\n")
    return code
