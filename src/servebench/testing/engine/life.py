"""Conformance of an engine's life cycle: start, generation, overload, death, stop."""

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from servebench.contracts.engine import Engine, RunningEngine, ServerTimings
from servebench.contracts.exchange import StopReason
from servebench.contracts.results import Record
from servebench.engine.supervisor.endpoint import generate_token
from servebench.engine.supervisor.ports import accepts_connections
from servebench.load.client.progress import Counts
from servebench.run.late_timings import with_timings
from servebench.testing.engine.suite import BUSY, CHAT, HOST, SCHEMA, EngineSuite, Launch, Life, LifeOf
from servebench.util.bounded_http import client
from servebench.util.errors import EngineError
from servebench.util.units import NS_PER_MS

DEATH_TIMEOUT_S = 60.0
KEPT_TIMEOUT_S = 10.0
TIMINGS_ERROR_MS = 2.0
TIMINGS_TRIES = 50
TIMINGS_SHARE_MAX, TIMINGS_FRONT_END_MS = 0.05, 100.0
"""An answer of a test may be as short as its front end's time: then what is not covered may be more than 5%."""


def _timings_problem(record: Record) -> str | None:
    assert record.residual_ms is not None
    assert record.sent_ns is not None
    e2e_ms = (record.ended_ns - record.sent_ns) / NS_PER_MS
    if record.residual_ms < -TIMINGS_ERROR_MS:
        return f"the engine's times are longer than the client's {e2e_ms:.1f} ms"
    if record.residual_ms > max(TIMINGS_FRONT_END_MS, TIMINGS_SHARE_MAX * e2e_ms):
        return f"{record.residual_ms:.1f} of {e2e_ms:.1f} ms are in no time of the engine"
    return None


class LifeTests(EngineSuite):
    """The engine starts, serves, fails and stops as it should."""

    def test_real_program_was_used(self, tmp_path: Path) -> None:
        """Skipped if the life-cycle tests did not run with the engine's own program."""
        reason = self.why_not_real(tmp_path)
        if reason is not None:
            how = "ran with a stand-in" if self.program else "did not run"
            pytest.skip(f"the life-cycle tests {how}: {reason}")

    def test_start_generate_stop(self, life_of: LifeOf, launch: Launch, tmp_path: Path) -> None:
        """It starts in its phases, generates in its dialect, counts tokens, and leaves nothing behind when stopped."""
        life = life_of()
        running = launch(life.context)
        names = [phase.name for phase in running.phases]
        assert {"spawned", "listening", "first_token"} <= set(names)
        assert [phase.ended_ns for phase in running.phases] == sorted(phase.ended_ns for phase in running.phases)
        assert ("healthy" in names) == (self.engine.health_path is not None)
        if not life.real and self.sample_log:
            assert {marker.phase for marker in self.engine.phases} <= set(names)
        dialect = self.engine.dialect
        requests = [replace(CHAT, exact_output=bool(dialect.exact_output), seed=1)]
        if dialect.json_schema:
            requests.append(replace(CHAT, request_id="schema", schema=SCHEMA, output_tokens=64))
        _, records = self.drive(running, requests, tmp_path)
        by_id = {one.request_id: one for one in records}
        assert {one.outcome for one in records} == {"ok"}, [one.error for one in records]
        assert by_id["chat"].counted_by == "usage"
        if dialect.exact_output:
            assert by_id["chat"].output_tokens == CHAT.output_tokens
        self.check_timings(by_id["chat"], lambda: self.drive(running, requests[:1], tmp_path)[1][0], real=life.real)
        if dialect.json_schema:
            answer = json.loads(by_id["schema"].text)
            assert set(answer) == {"city", "rain"}
            assert answer["city"] in ("Paris", "Rome")
            assert isinstance(answer["rain"], bool)
        self.check_stop(running, life)

    def test_timings_after_load(self, life_of: LifeOf, launch: Launch, tmp_path: Path) -> None:
        """The times that it keeps until after the load are found by the ids of its answers and add up; a server that keeps none,
        or says something else, makes no error but EngineError."""
        if "after_load" not in self.engine.timings_sources:
            assert self.engine.timings_after_load is Engine.timings_after_load, (
                "timings_sources does not name after_load"
            )
            pytest.skip(f"{self.engine.name} keeps no timings")
        life = life_of()
        context = replace(life.context, engine=replace(life.context.engine, request_timings="after_load"))
        running = launch(context)

        def timed() -> Record:
            _, (answered,) = self.drive(running, [CHAT], tmp_path)
            kept: dict[str, ServerTimings] = {}
            deadline = time.monotonic() + (KEPT_TIMEOUT_S if life.real else 0.0)
            with contextlib.suppress(EngineError):
                kept |= self.engine().timings_after_load(context, running)
                while answered.response_id not in kept and time.monotonic() < deadline:
                    time.sleep(0.1)
                    kept |= self.engine().timings_after_load(context, running)
            if not life.real:
                return answered
            assert answered.response_id in kept, f"no times for the answer {answered.response_id}"
            return with_timings(answered, kept[answered.response_id], "after_load")

        found = timed()
        if life.real:
            self.check_timings(found, timed, real=True)

    def check_timings(self, record: Record, again: Callable[[], Record], *, real: bool) -> None:
        """Check that the engine's own times fit into the time that the client saw, and cover it but for a front end: of one
        answer at least, since a busy machine delays single ones. `again` returns another."""
        if record.residual_ms is None:
            declared = self.has_timings if real else self.engine.emulation.timings
            assert not declared, "request_timings finds nothing in an answer"
            return
        for _ in range(TIMINGS_TRIES):
            if (problem := _timings_problem(record)) is None:
                return
            record = again()
        raise AssertionError(f"{problem}: check the units of the engine's times, and what they contain")

    def check_stop(self, running: RunningEngine, life: Life) -> None:
        """Stop it twice and check that nothing is left."""
        assert running.pid is not None
        process = psutil.Process(running.pid) if psutil.pid_exists(running.pid) else None
        report = running.stop()
        assert report.stopped
        assert report.leftover == ()
        assert running.stop() == report, "a second stop does nothing"
        assert process is None or not process.is_running()
        assert not accepts_connections(HOST, life.context.port)

    def test_overload(self, life_of: LifeOf, launch: Launch, tmp_path: Path) -> None:
        """Each of many concurrent requests is served or rejected; nothing hangs, and the server answers afterwards."""
        life = life_of(max_running=2, step_ms=100.0)
        running = launch(life.context)
        requests = [replace(CHAT, request_id=str(index), output_tokens=8) for index in range(self.overload)]
        _, records = self.drive(running, requests, tmp_path)
        assert len(records) == self.overload
        served = [one for one in records if one.outcome == "ok"]
        rejected = [one for one in records if one.outcome != "ok"]
        assert served
        for one in rejected:
            assert one.outcome == "stream_error" or (one.outcome == "http_error" and one.http_status in BUSY), one.error
        if not life.real:
            assert rejected, "the stand-in serves only two requests at once"
            expected = "stream_error" if self.rejection == "event" else "http_error"
            assert {one.outcome for one in rejected} == {expected}
        assert running.died() is None
        with client(()) as http:
            generate_token(http, running.base_url, self.engine(), running.model, 30.0)
        self.check_stop(running, life)

    def test_death_during_load(self, life_of: LifeOf, launch: Launch, tmp_path: Path) -> None:
        """A kill -9 while it answers is noticed, reported in one line, and leaves nothing behind."""
        life = life_of(step_ms=400.0)
        running = launch(life.context)
        assert running.pid is not None
        pid = running.pid
        killed = threading.Event()

        def kill(counts: Counts) -> StopReason | None:
            if counts.reads and not killed.is_set():
                os.kill(pid, signal.SIGKILL)
                killed.set()
            return StopReason.ENGINE_DIED if running.died() else None

        exact = bool(self.engine.dialect.exact_output)
        requests = [replace(CHAT, request_id=str(i), output_tokens=100, exact_output=exact) for i in range(2)]
        _, records = self.drive(running, requests, tmp_path, kill)
        assert killed.is_set(), "it answered nothing"
        assert "ok" not in {one.outcome for one in records}
        deadline = time.monotonic() + DEATH_TIMEOUT_S
        while (message := running.died()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert message is not None
        assert message.startswith(f"{self.engine.name} died: killed by SIGKILL")
        assert "\n" not in message
        self.check_stop(running, life)

    def test_death_during_start(self, life_of: LifeOf, launch: Launch) -> None:
        """A kill -9 during the start ends the wait."""
        life = life_of()
        done = threading.Event()

        def kill() -> None:
            while not done.is_set():
                # a command may replace itself with another program, so the engine is found by its parent
                for child in psutil.Process().children():
                    with contextlib.suppress(psutil.Error):
                        if any(word.endswith("guard.py") for word in child.cmdline()):
                            for engine in child.children():
                                engine.kill()
                                return
                time.sleep(0.002)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        try:
            with pytest.raises(EngineError, match=f"{self.engine.name} died: killed by SIGKILL"):
                launch(life.context)
        finally:
            done.set()
            killer.join()
        assert not accepts_connections(HOST, life.context.port)

    def test_failures_are_explained(self, life_of: LifeOf, launch: Launch) -> None:
        """A start that fails with a known log line is reported with its kind and advice."""
        if not self.failures:
            pytest.skip("the suite declares no failures")
        for kind, line in self.failures.items():
            life = life_of(dies_with=(line, 1), stand_in_only=True)
            with pytest.raises(EngineError) as error:
                launch(life.context)
            assert error.value.kind == kind, line
            advice = next(hint.advice for hint in self.engine.hints if re.search(hint.pattern, line))
            assert advice in str(error.value)
