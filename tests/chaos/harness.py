"""Starts servebench where it can be harmed, finds the processes of a study, and checks from disk that nothing was lost."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import psutil

from servebench.load.client.spool import read_spool

MARK = "SERVEBENCH_CHAOS"
"""An environment variable that every process of a scene inherits: none of them can hide."""

GONE_S = 45.0
"""How long processes may outlive servebench: the guard's SIGTERM, its deadline, its SIGKILL."""

FAST = (
    *("launch=emulated", "launch.time_scale=0.02", "gpu=rtx5090", "model=qwen2.5-7b-instruct", "workload=unique"),
    *(
        "workload.output_tokens=16",
        "load.self_check=never",
        "load.hold_level=false",
        "engine.stop_timeout_s=5",
        "study.starts=1",
    ),
)
VICTIMS = {
    "servebench": "servebench",
    "worker": "servebench.load.client.worker",
    "engine": "servebench.emulator",
    "guard": "guard.py",
}


@dataclass
class Scene:
    """A folder, an environment of its own, and all processes that have it."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def environment(self) -> dict[str, str]:
        cache = self.folder / "cache"
        return {**os.environ, MARK: self.mark, "SERVEBENCH_CACHE": str(cache), "HOME": str(self.folder), **self.env}

    def start(self, *words: str, **options) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "servebench", *words],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def run(self, *words: str, code: int | None = None, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        """To its end, with this exit code if it is given; a command that does not end is a fault of its own."""
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            stacks = self.living()
            for pid in stacks:
                kill(pid)
            out, err = process.communicate()
            raise AssertionError(
                f"{words} did not end within {timeout_s:g} s: {stacks}; it said {err[-2000:]}"
            ) from None
        assert code is None or process.returncode == code, err
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def living(self) -> dict[int, str]:
        found = {}
        needle = f"{MARK}={self.mark}".encode()
        for pid in psutil.pids():
            try:
                if needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if status != "Z":
                        found[pid] = command
            except OSError:
                continue
        return found

    def victims(self, what: str, main: int) -> list[int]:
        if what == "servebench":
            return [main]
        return [pid for pid, command in self.living().items() if VICTIMS[what] in command and pid != main]

    def gone(self, within_s: float = GONE_S) -> dict[int, str]:
        """What still lives after so long; empty is good."""
        deadline = time.monotonic() + within_s
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    @property
    def study(self) -> Path:
        return self.folder / "outputs" / "s"


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def stored(study: Path) -> dict[str, set[str]]:
    from servebench.store.layout import StudyFolder
    from servebench.store.tables import read_records

    folder = StudyFolder(study)
    return {
        path.parent.name: {record.request_id for record in read_records(folder.run(path.parent.name))}
        for path in sorted(study.glob("*/run.json"))
    }


def finished(study: Path) -> dict[str, set[str]]:
    """Ids of the requests that had ended, in tables and in spools, for each run of a study that was killed."""
    found = stored(study)
    for spool in study.glob("*/raw/*.spool"):
        run = spool.parts[-3]
        ended = {one.request_id for one in read_spool(spool) if one.outcome == "complete"}
        found.setdefault(run, set()).update(ended)
    return found


def ports_of(study: Path) -> list[int]:
    """The ports that engines of a study were started on."""
    ports = set()
    for manifest in study.glob("*/manifest.json"):
        words = (json.loads(manifest.read_text()).get("command") or {}).get("argv") or []
        ports |= {int(words[i + 1]) for i, word in enumerate(words[:-1]) if word == "--port" and words[i + 1].isdigit()}
    return sorted(ports)


def listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def faults_of(study: Path, *, points: dict[str, int]) -> list[str]:
    """What is wrong with a study that should be whole; `points` are the levels' names and their requests."""
    faults = []
    state = json.loads((study / "study.json").read_text())
    if state["status"] != "finished":
        faults.append(f"the study is {state['status']}")
    for name in state["runs"]:
        run = study / name
        status = json.loads((run / "run.json").read_text())
        if status["status"] != "finished":
            faults.append(f"{name} is {status['status']}: {status.get('error')}")
            continue
        faults += [f"{name}: {left} is left" for left in [*run.glob("raw/*"), *run.glob("*.parts/*")]]
        rows = pd.read_parquet(run / "points.parquet")
        requests = pd.read_parquet(run / "requests.parquet")
        twice = requests.request_id[requests.request_id.duplicated()]
        if len(twice):
            faults.append(f"{name}: {len(twice)} requests are there twice")
        whole = {}
        for _, row in rows.iterrows():
            level = row.point.partition("-a")[0]
            own = requests[(requests.point == row.point) & ~requests.warmup & ~requests.filler]
            cut = "interrupted" in row.doubts or "worker_died" in row.doubts or "engine_died" in row.doubts
            if len(own) < row.requests_ok + row.requests_failed:
                faults.append(f"{name}/{row.point}: {len(own)} records for {row.requests_ok + row.requests_failed}")
            if not cut:
                whole[level] = whole.get(level, 0) + 1
                if (row.requests_ok, row.requests_failed) != (points.get(level), 0):
                    faults.append(f"{name}/{row.point}: {row.requests_ok} ok, {row.requests_failed} failed")
                if (own.outcome == "ok").sum() != points.get(level):
                    faults.append(f"{name}/{row.point}: {(own.outcome == 'ok').sum()} records are ok")
        if whole != dict.fromkeys(points, 1):
            faults.append(f"{name}: whole points are {whole}")
    return faults


def summary(study: Path) -> list[tuple[str, str, int, int, float]]:
    """What must be the same in a study that was killed and in one that was not."""
    rows = []
    for points in sorted(study.glob("*/points.parquet")):
        for _, row in pd.read_parquet(points).iterrows():
            if not {"interrupted", "worker_died", "engine_died"} & set(row.doubts):
                level = row.point.partition("-a")[0]
                rows.append((points.parent.name, level, row.requests_ok, row.requests_failed, row.output_tokens_mean))
    return sorted(rows)


def tracked(uri, name):
    """What the server has of the study: for each run its kind, title, status, parameters and how many values each metric has."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(name)
    runs = client.search_runs([experiment.experiment_id])
    return sorted(
        (
            run.data.tags["servebench.kind"],
            run.data.tags.get("servebench.run_id", ""),
            run.info.status,
            len(run.data.params),
            tuple(sorted((name, len(client.get_metric_history(run.info.run_id, name))) for name in run.data.metrics)),
            tuple(sorted(file.path for file in client.list_artifacts(run.info.run_id))),
        )
        for run in runs
    )
