"""kill -9 of servebench, of a worker, of the engine and of its guard at random moments; then `resume`, and nothing is lost."""

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos import harness

pytestmark = pytest.mark.chaos

LEVELS = {"c1-r0": 6, "c3-r0": 6}


def study_of(runs):
    return (
        *("-m", "engine=vllm,sglang,trtllm", f"workload.seed={','.join(map(str, range(runs // 3)))}"),
        *(*harness.FAST, "load.concurrency=[1,3]", "load.requests=6", "load.warmup_requests=2", "study.name=s"),
        "tracking=none",
    )


SILENT_S = 90.0
"""A study of this kind writes something every few seconds; one that does not for so long hangs."""


def last_change(study):
    times = [0.0]
    # folders come and go meanwhile
    for folder, _, names in os.walk(study):
        for name in names:
            with contextlib.suppress(OSError):
                times.append((Path(folder) / name).stat().st_mtime)
    return max(times)


class Harm:
    """Kills at random moments, and what came of them."""

    def __init__(self, scene, rng, rounds, pace_s):
        self.scene, self.rng, self.left, self.pace_s = scene, rng, rounds, pace_s
        self.happened = Counter()
        self.longest_end_s = 0.0

    def session(self, words, limit_s):
        """One start of the command, killed at until it ends or is itself killed. Returns its exit code."""
        process = self.scene.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)
        reader.start()
        began = time.monotonic()
        due = began + self.rng.uniform(0.5, self.pace_s)
        victim = self._victim()
        while process.poll() is None:
            now = time.monotonic()
            assert now - began < limit_s, f"{words} did not end within {limit_s:g} s"
            if self.left and now >= due:
                found = self.scene.victims(victim, process.pid)
                if found and harness.kill(found[0]):
                    self.left -= 1
                    self.happened[victim] += 1
                    killed_at = time.monotonic()
                    if victim == "servebench":
                        process.wait(10)
                        left = self.scene.gone()
                        assert not left, f"{victim} was killed after {now - began:.2f} s, and these live: {left}"
                        self.longest_end_s = max(self.longest_end_s, time.monotonic() - killed_at)
                    due, victim = now + self.rng.uniform(0.5, self.pace_s), self._victim()
            silent_s = time.time() - max(last_change(self.scene.study), time.time() - (now - began))
            assert silent_s < SILENT_S, f"{words}: nothing was written for {silent_s:.0f} s: {self.scene.living()}"
            time.sleep(0.05 if now < due else 0.005)
        reader.join(10)
        process.stderr.close()
        left = self.scene.gone()
        assert not left, f"{words} ended with {process.returncode}, and these live: {left}"
        assert "Traceback" not in "".join(said), "".join(said)
        return process.returncode

    def _victim(self):
        return self.rng.choice(["servebench", "servebench", "worker", "engine", "guard"])


@pytest.mark.timeout(0)
def test_a_study_that_is_killed_and_resumed_equals_one_that_was_not(tmp_path, rounds, runs, pace_s, seed, capsys):
    """`--runs` runs, `--rounds` kills: the same points with the same counts, each request once, nothing running."""
    for name in ("calm", "harmed"):
        (tmp_path / name).mkdir()
    calm = harness.Scene(tmp_path / "calm")
    done = calm.run(*study_of(runs), timeout_s=1800)
    assert done.returncode == 0, done.stderr
    assert harness.faults_of(calm.study, points=LEVELS) == []
    wanted = harness.summary(calm.study)
    assert len(wanted) == runs * len(LEVELS)

    rng = random.Random(seed)
    left, number = rounds, 0
    while left:
        scene = harness.Scene(tmp_path / "harmed" / str(number))
        scene.folder.mkdir()
        harm = Harm(scene, rng, left, pace_s)
        began = time.monotonic()
        sessions = kept = 0
        words = study_of(runs)
        while True:
            code = harm.session(words, 1800)
            sessions += 1
            if scene.study.joinpath("study.json").exists():
                before = harness.finished(scene.study)
                scene.run("recover", "s", code=0)
                after = harness.stored(scene.study)
                lost = {run: ids - after.get(run, set()) for run, ids in before.items() if ids - after.get(run, set())}
                assert not lost, f"session {sessions}: {lost}"
                kept += sum(map(len, before.values())) if code == -9 else 0
                assert [port for port in harness.ports_of(scene.study) if harness.listening(port)] == []
                words = ("resume", "s", "--failed")
            if code == 0:
                break
            assert sessions < 3 * runs + rounds
        assert harness.faults_of(scene.study, points=LEVELS) == []
        assert harness.summary(scene.study) == wanted
        assert scene.gone(1.0) == {}
        with capsys.disabled():
            sys.stderr.write(
                f"\nstudy {number}: {dict(harm.happened)} killed in {sessions} sessions and "
                f"{time.monotonic() - began:.0f} s; after a kill of servebench all was gone within "
                f"{harm.longest_end_s:.1f} s; {kept} finished requests were there at its ends, none was lost\n"
            )
        assert harm.left < left or left == 0, "no kill hit anything"
        left, number = harm.left, number + 1
