"""A real MLflow server behind a line that fails in every way at random moments, killed and started again under a study
that is killed too: the study loses nothing by it, and `sync` brings everything afterwards, each run once."""

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from chaos import harness
from servebench.engine.supervisor.ports import free_port

pytestmark = pytest.mark.chaos

LEVELS = {"c1-r0": 4, "c2-r0": 4}
TIMEOUT_S = 2
MOODS = ("well", "well", "refused", "error", "slow", "deaf", "late", "hang")
"""What the line does with a request: passes it; closes; says 500; passes it after 0.5 s; has it done and keeps the answer;
has it done when the client has given up; answers nothing."""


class Tracker:
    """An MLflow server, and the line to it."""

    def __init__(self, folder, environment):
        self.folder, self.environment = folder, environment
        self.port = free_port("127.0.0.1")
        self.mood = "well"
        self.seen = Counter()
        self.process = None
        self.line = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.uri = f"http://127.0.0.1:{self.line.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
             "--backend-store-uri", f"sqlite:///{self.folder}/tracker.db", "--default-artifact-root",
             f"{self.folder}/artifacts"],
            cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def wait(self, within_s=600.0):
        deadline = time.monotonic() + within_s
        while not harness.listening(self.port):
            assert time.monotonic() < deadline, "MLflow did not start"
            time.sleep(0.2)

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.line.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, contextlib.suppress(OSError):
            while request := client.recv(65_536):
                mood = self.mood
                self.seen[mood] += 1
                if mood == "refused":
                    return
                if mood == "error":
                    client.sendall(
                        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )
                    return
                if mood == "hang":
                    time.sleep(3 * TIMEOUT_S)
                    return
                time.sleep({"slow": 0.5, "late": 1.5 * TIMEOUT_S}.get(mood, 0.0))
                self._pass(client, request, answered=mood in ("well", "slow"))
                return

    def _pass(self, client, request, *, answered):
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as server:
            server.sendall(request)
            while ready := select.select([client, server], [], [], 30)[0]:
                if server in ready:
                    answer = server.recv(65_536)
                    if not answer or not answered:
                        return
                    client.sendall(answer)
                if client in ready:
                    more = client.recv(65_536)
                    if not more and answered:
                        return
                    if more:
                        server.sendall(more)
                    else:
                        # who gave up sends no more, and the server works on
                        with contextlib.suppress(OSError):
                            server.recv(65_536)
                        return


@contextlib.contextmanager
def changing(tracker, rng):
    """While open, the line changes its manner many times in one conversation."""
    over = threading.Event()

    def change():
        while not over.wait(rng.uniform(0.05, 0.8)):
            tracker.mood = rng.choice((*MOODS, "well", "well"))

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


def study_of(uri, runs, experiment):
    return (
        *("-m", "engine=vllm,sglang,trtllm", f"workload.seed={','.join(map(str, range(runs // 3)))}", *harness.FAST),
        *("load.concurrency=[1,2]", "load.requests=4", "load.warmup_requests=0", "study.name=s"),
        *(f"tracking.uri={uri}", f"tracking.timeout_s={TIMEOUT_S}", f"tracking.experiment={experiment}"),
    )


@pytest.fixture
def tracker(tmp_path):
    place = harness.Scene(tmp_path / "tracker")
    place.folder.mkdir()
    made = Tracker(place.folder, place.environment)
    made.start()
    yield made
    # it starts processes in sessions of their own
    for pid in place.living():
        harness.kill(pid)
    made.process.wait()


@pytest.mark.timeout(0)
def test_a_tracker_that_fails_and_dies_under_a_study_that_is_killed(tmp_path, tracker, rounds, seed, capsys):
    """`--rounds` kills of the tracker and of servebench, and a line that changes its manner all the while."""
    runs = 9
    for name in ("harmed", "calm"):
        (tmp_path / name).mkdir()
    tracker.wait()
    rng = random.Random(seed)
    scene = harness.Scene(tmp_path / "harmed")
    killed = Counter()
    words, sessions = study_of(tracker.uri, runs, "harmed"), 0
    while True:
        process = scene.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        said = []
        reader = threading.Thread(target=lambda p=process, into=said: into.extend(p.stderr), daemon=True)
        reader.start()
        began = time.monotonic()
        mood_at, kill_at = began, began + rng.uniform(1.0, 15.0)
        while process.poll() is None:
            now = time.monotonic()
            assert now - began < 1800, f"{words} did not end: {said[-5:]}"
            if now >= mood_at:
                tracker.mood, mood_at = rng.choice(MOODS), now + rng.uniform(0.2, 4.0)
            if sum(killed.values()) < rounds and now >= kill_at:
                kill_at = now + rng.uniform(2.0, 20.0)
                if rng.random() < 0.5:
                    tracker.kill()
                    killed["tracker"] += 1
                    tracker.start()
                elif harness.kill(process.pid):
                    killed["servebench"] += 1
            time.sleep(0.02)
        reader.join(10)
        process.stderr.close()
        sessions += 1
        assert scene.gone() == {}
        assert "Traceback" not in "".join(said), "".join(said)
        assert process.returncode in (0, -9), said[-5:]
        if scene.study.joinpath("study.json").exists():
            words = ("resume", "s")
        if process.returncode == 0:
            break
    assert harness.faults_of(scene.study, points=LEVELS) == []
    tracker.wait()
    with changing(tracker, rng):
        for _ in range(6):
            done = scene.run("sync", "s", timeout_s=900)
            assert done.returncode in (0, 1), done.stderr
            assert "Traceback" not in done.stderr, done.stderr
    # what the line still has in it arrives
    time.sleep(3 * TIMEOUT_S)
    tracker.mood = "well"
    for _ in range(2):
        scene.run("sync", "s", timeout_s=600, code=0)
    seen = dict(tracker.seen)
    calm = harness.Scene(tmp_path / "calm")
    assert calm.run(*study_of(tracker.uri, runs, "calm"), timeout_s=1800).returncode == 0
    assert calm.run("sync", "s", timeout_s=600).returncode == 0
    found, wanted = (harness.tracked(tracker.uri, name) for name in ("harmed", "calm"))
    with capsys.disabled():
        sys.stderr.write(f"\n{dict(killed)} killed in {sessions} sessions; requests to the tracker by manner: {seen}\n")
    assert [one[:3] for one in found] == [one[:3] for one in wanted]
    points = {one[1]: one[4] for one in wanted}
    for _, run, _, _, metrics, _ in found:
        assert metrics_of(metrics) == metrics_of(points[run]), run
    assert [files_of(one) for one in found] == [files_of(one) for one in wanted]


def metrics_of(metrics):
    """Those that every whole point has; a point that was cut off adds values of its own."""
    return {name for name, _ in metrics if "requests_ok" in name or "throughput" in name}


def files_of(run):
    """Without the engine's log, which the run has that started an engine for several."""
    return [name for name in run[5] if name != "engine.log"]
