"""kill -9 of each command that writes, at any moment of its life: the next one goes on, and nothing is lost or left."""

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from chaos import harness
from support.waiting import wait_until

pytestmark = pytest.mark.chaos

LEVELS = {"c1-r0": 6, "c3-r0": 6}
QUESTIONS = 30
STUDY = (
    *("-m", "engine=vllm,sglang", *harness.FAST, "load.concurrency=[1,3]", "load.requests=6", "load.warmup_requests=2"),
    *("study.name=s", "tracking=none"),
)
QUALITY = (
    *("engine=vllm", *harness.FAST, "load.concurrency=[1,3]", "load.requests=6", "load.warmup_requests=0"),
    *("quality=mmlu", "quality.path=questions.jsonl", "quality.items=all", "quality.concurrency=[1,4]"),
    *("study.name=s", "tracking=none"),
)
TUNE = (
    *("tune", "engine=vllm", *harness.FAST, "load.concurrency=[4]", "load.requests=12", "load.warmup_requests=2"),
    *("tune.space=space.yaml", "tune.trials=6", "tune.count=3", "tune.finalists=1", "tune.final_starts=2"),
    *("study.name=s", "tracking=none"),
)
SYNC = ("sync", "s", "--uri", "sqlite:///mlflow.db")
RESUME = ("resume", "s", "--failed")


def half_a_study(scene: harness.Scene) -> None:
    """A study that was killed when its first run was stored."""
    process = scene.start(*STUDY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: list(scene.study.glob("*/points.parquet")), process=process)
    harness.kill(process.pid)
    process.wait()
    assert scene.gone() == {}


def whole_study(scene: harness.Scene) -> None:
    assert scene.run(*STUDY).returncode == 0


def faults_of_a_study(scene: harness.Scene) -> list[str]:
    return harness.faults_of(scene.study, points=LEVELS)


def faults_of_quality(scene: harness.Scene) -> list[str]:
    faults = faults_of_a_study(scene)
    (table,) = scene.study.glob("*/quality.parquet")
    rows = pd.read_parquet(table)
    asked = rows.groupby("concurrency").item_id.agg(["size", "nunique"]).to_dict("index")
    wanted = {level: {"size": QUESTIONS, "nunique": QUESTIONS} for level in (1, 4)}
    return faults if asked == wanted else [*faults, f"questions asked: {asked}"]


def faults_of_a_tune(scene: harness.Scene) -> list[str]:
    faults = []
    states = {file.parent.name: json.loads(file.read_text())["status"] for file in scene.study.glob("*/run.json")}
    answer = json.loads((scene.study / "tune_answer.json").read_text())
    if json.loads((scene.study / "study.json").read_text())["status"] != "finished" or set(states.values()) != {
        "finished"
    }:
        faults.append(f"not finished: {states}")
    if not answer["finished"] or answer["best"] is None or answer["spent"] > answer["budget"]:
        faults.append(f"the answer: {answer}")
    for table in scene.study.glob("*/points.parquet"):
        rows = pd.read_parquet(table)
        whole = rows[[not {"interrupted", "engine_died", "worker_died"} & set(doubts) for doubts in rows.doubts]]
        if whole.groupby(["repeat", "concurrency"]).size().max() > 1:
            faults.append(f"{table.parent.name}: a start was measured twice: {list(rows.point)}")
    return [*faults, *(f"{left} is left" for left in scene.study.glob("*/raw/*"))]


def faults_of_sync(scene: harness.Scene) -> list[str]:
    runs = harness.tracked(f"sqlite:///{scene.folder}/mlflow.db", "servebench")
    kinds = Counter(run[0] for run in runs)
    faults = [] if kinds == {"study": 1, "run": 2} else [f"MLflow has {kinds}"]
    return [*faults, *(f"{run[1]} is {run[2]}" for run in runs if run[2] != "FINISHED"), *faults_of_a_study(scene)]


@dataclass(frozen=True, kw_only=True)
class Course:
    """A command, the one that goes on after a kill, and what is wrong when all is done. `before` runs undisturbed."""

    start: tuple[str, ...]
    go_on: tuple[str, ...] = RESUME
    faults: Callable[[harness.Scene], list[str]] = faults_of_a_study
    before: Callable[[harness.Scene], None] = lambda scene: None


COURSES = {
    "study": Course(start=STUDY),
    "resume": Course(start=RESUME, before=half_a_study),
    "tune": Course(start=TUNE, faults=faults_of_a_tune),
    "quality": Course(start=QUALITY, faults=faults_of_quality),
    "sync": Course(start=SYNC, go_on=SYNC, faults=faults_of_sync, before=whole_study),
}


def stored_answers(study: Path) -> dict[tuple[str, ...], int]:
    """How many questions have an answer on disk, by run and level: graded ones and those in the log."""
    found: dict[tuple[str, ...], int] = {}
    for table in study.glob("*/quality.parquet"):
        for (name, level), rows in pd.read_parquet(table).groupby(["benchmark", "concurrency"]):
            found[table.parent.name, f"answers-{name}-c{level}"] = len(rows)
    for log in study.glob("*/raw/answers-*.jsonl"):
        key = log.parts[-3], log.stem
        digests = set()
        for line in log.read_text().splitlines():
            try:
                digests.add(json.loads(line)["digest"])
            except ValueError:
                continue
        found[key] = max(found.get(key, 0), len(digests))
    return found


def files_of(scene: harness.Scene) -> set[str]:
    """The names of all files of a study, which say whether something half-written is left."""
    found = {str(path.relative_to(scene.study)) for path in scene.study.rglob("*") if path.is_file()}
    return {name for name in found if "prompts/" not in name}


def prepared(folder: Path, template: Path | None) -> harness.Scene:
    """A scene of its own; all have one cache, so that all studies are one user's."""
    scene = harness.Scene(folder, env={"SERVEBENCH_CACHE": str(folder.parent / "cache")})
    if template is not None:
        shutil.copytree(template, folder)
        return scene
    folder.mkdir()
    questions = [
        {"question": f"number {n}", **{f"answer_{one}": one for one in "abcd"}, "correct_answer": "A", "topic": "n"}
        for n in range(QUESTIONS)
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (folder / "space.yaml").write_text("parameters: {engine.max_num_seqs: {values: [2, 4, 8], source: here}}")
    return scene


class Kills:
    """One course to its end, killed at random moments."""

    def __init__(self, scene: harness.Scene, course: Course, rng: random.Random, life_s: float) -> None:
        self.scene, self.course, self.rng, self.life_s = scene, course, rng, life_s
        self.requests: dict[str, set[str]] = {}
        self.answers: dict[tuple[str, ...], int] = {}

    def run(self, left: int) -> int:
        """Return how many kills hit something."""
        words, hits = self.course.start, 0
        while True:
            code = self._once(words, last=hits >= left)
            if (self.scene.study / "study.json").exists():
                words = self.course.go_on
            if code == 0:
                return hits
            assert code == -9, f"{words} ended with {code}"
            hits += 1
            self._check_kept()
            if self.rng.random() < 0.3 and words is self.course.go_on:
                done = self.scene.run("recover", "s")
                assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
                self._check_kept()

    def _once(self, words: tuple[str, ...], *, last: bool) -> int:
        process = self.scene.start(*words, stdout=subprocess.DEVNULL)
        try:
            _, err = process.communicate(timeout=600 if last else self.rng.uniform(0.1, 1.0) * self.life_s)
        except subprocess.TimeoutExpired:
            assert not last, f"{words} does not end: {self.scene.living()}"
            harness.kill(process.pid)
            _, err = process.communicate()
        left = self.scene.gone()
        assert not left, f"{words} ended with {process.returncode}, and these live: {left}"
        assert [port for port in harness.ports_of(self.scene.study) if harness.listening(port)] == []
        assert "Traceback" not in err, err
        assert process.returncode in (0, -9), err
        return process.returncode

    def _check_kept(self) -> None:
        """What had ended before an earlier kill is still there."""
        requests, answers = harness.finished(self.scene.study), stored_answers(self.scene.study)
        lost: dict[Any, Any] = {run: ids - requests.get(run, set()) for run, ids in self.requests.items()}
        lost |= {key: n for key, n in self.answers.items() if answers.get(key, 0) < n}
        assert not any(lost.values()), lost
        self.requests, self.answers = requests, answers


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", COURSES)
def test_a_command_that_is_killed_at_any_moment(tmp_path, request, name, rounds, seed, capsys):
    """`--rounds` kills of each of `--course`; what goes on after them ends as if there had been none."""
    if name not in request.config.getoption("--course").split(","):
        pytest.skip("not among --course")
    course, rng = COURSES[name], random.Random(seed)
    template = prepared(tmp_path / "template", None)
    course.before(template)
    calm = prepared(tmp_path / "calm", template.folder)
    began = time.monotonic()
    done = calm.run(*course.start)
    life_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert course.faults(calm) == []
    number = hits = 0
    while hits < rounds:
        number += 1
        scene = prepared(tmp_path / str(number), template.folder)
        kills = Kills(scene, course, rng, life_s)
        hits += kills.run(rounds - hits)
        assert course.faults(scene) == []
        kills._check_kept()
        if name != "tune":
            assert files_of(scene) == files_of(calm)
        assert list(scene.folder.rglob("*.tmp")) == []
        with capsys.disabled():
            sys.stderr.write(f"\n{name}: {hits} of {rounds} kills, study {number}, {time.monotonic() - began:.0f} s\n")
        shutil.rmtree(scene.folder)
    assert hits >= rounds
