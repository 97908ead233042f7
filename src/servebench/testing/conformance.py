"""What every engine plugin must keep, as tests to inherit.

    class TestMine(EngineConformance):
        engine = MyEngine
        program = "my-server"

Commands, settings, patterns and request bodies are checked everywhere. The life (start, generation, overload, death, stop)
runs with the engine's own program where it is installed, else with a stand-in: an executable named `program` that serves
what the adapter expects. `test_the_real_program_was_met` is skipped then, and says why.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import httpx
import psutil
import pytest

from servebench.contracts.emulation import Emulation
from servebench.contracts.engine import Engine, LaunchContext, RunningEngine
from servebench.contracts.exchange import PhaseReport, PlannedRequest, PointPlan, StopReason
from servebench.contracts.request import Message, Request
from servebench.contracts.results import Record
from servebench.contracts.settings import EngineSettings, GpuSettings, LaunchSettings, ModelSettings, WorkloadSettings
from servebench.engine.adapters.flags import SHARED_SETTINGS
from servebench.engine.launchers.attach import AttachLauncher, AttachSettings
from servebench.engine.launchers.docker_command import EVERYWHERE, DockerSettings, container_command
from servebench.engine.launchers.process import ProcessLauncher
from servebench.engine.supervisor.ports import accepts_connections, free_port
from servebench.engine.supervisor.probe import generate_token
from servebench.load.client.progress import Counts
from servebench.load.client.spool_reader import read_spool
from servebench.load.coordinator.drive import drive
from servebench.measure.derive import record
from servebench.registry.registry import registry
from servebench.run.requests import target_of
from servebench.testing.server import FakeServer, Manners
from servebench.testing.stand_in import write_stand_in
from servebench.util.bounded_http import client
from servebench.util.errors import ConfigError, EngineError, FailureKind

HOST = "127.0.0.1"
KINDS = {
    *(FailureKind.OUT_OF_MEMORY, FailureKind.MODEL_MISSING, FailureKind.WRONG_CUDA),
    *(FailureKind.PORT_IN_USE, FailureKind.UNKNOWN_FLAG, FailureKind.OTHER),
}
BUSY = (429, 503)

SAMPLES: Mapping[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (2,),
    "max_model_len": (4096,),
    "dtype": ("bfloat16",),
    "quantization": ("awq",),
    "gpu_memory_fraction": (0.625,),
    "max_num_seqs": (24,),
    "prefix_caching": (True, False),
    "seed": (1234567,),
}
"""A value of each shared setting that no default has."""

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "rain": {"type": "boolean"}},
    "required": ["city", "rain"],
    "additionalProperties": False,
}

CHAT = Request(request_id="chat", messages=(Message("user", "Say something."),), output_tokens=12)
TEXT = Request(request_id="text", prompt="Once upon a time", output_tokens=12)
WORKLOAD = WorkloadSettings(name="conformance")


def silent(_: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """A program to start: the context that starts it, whether it is the engine's own, and what it does to a crowd."""

    context: LaunchContext
    real: bool


class EngineConformance:
    """Inherit, name the engine, and say what the suite cannot know.

    Attributes:
        engine: the class under test.
        program: the file name of its executable, for the stand-in; null runs the life only where the engine is installed.
        settings: engine settings of a real start, small enough for a test.
        model: what commands are composed with; `real_model` gives the one of a real start.
        own_defaults: values of shared settings that need no words, for they are what the engine does anyway.
        known_fields: the top-level fields of a request body that the engine takes; null when it ignores unknown ones.
        sample_log: lines of a real start, in their order. Every declared phase must be found in them.
        failures: for each kind of failure a line that the engine's log has then.
        refusal: how a full engine refuses: a status, or `event` for an error event inside HTTP 200.
        crowd: how many requests are sent at once to see what it does then.
    """

    engine: ClassVar[type[Engine]]
    program: ClassVar[str | None] = None
    settings: ClassVar[Mapping[str, Any]] = {}
    model: ClassVar[ModelSettings] = ModelSettings(name="org/model", path="/models/model")
    own_defaults: ClassVar[Mapping[str, Any]] = {}
    known_fields: ClassVar[Sequence[str] | None] = None
    sample_log: ClassVar[Sequence[str]] = ()
    failures: ClassVar[Mapping[str, str]] = {}
    refusal: ClassVar[int | Literal["event"]] = 503
    crowd: ClassVar[int] = 12

    # what a plugin may replace

    def real_model(self) -> ModelSettings:
        """The model of a real start."""
        return self.model

    def real_cache_dir(self, folder: Path) -> Path:
        """Where a real start keeps big files."""
        return folder / "cache"

    def stand_in_settings(self, folder: Path, stand_in: Path) -> Mapping[str, Any]:
        """The settings that have the command run the stand-in in place of the program."""
        return {"executable": str(stand_in)}

    def stand_in_verbs(self) -> Mapping[str, int]:
        """First arguments by which the program does something else than serve, with the exit code that they end with."""
        return {}

    # what tests are made of

    def context(
        self, cache_dir: Path, *, port: int = 8123, model: ModelSettings | None = None, **settings: Any
    ) -> LaunchContext:
        """A launch context of this engine."""
        found = self.engine.settings_type(name=self.engine.name, **settings)
        return LaunchContext(
            engine=found, model=model or self.model, gpu=GpuSettings(name="none"), port=port, cache_dir=cache_dir
        )

    def composed(self, context: LaunchContext) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """The command's words and variables."""
        command = self.engine().command(context)
        return command.argv, command.env

    def manners(self, **more: Any) -> Manners:
        """What a server of this engine's kind does."""
        dialect = self.engine.dialect
        return Manners(
            models=(self.engine().served_model(self.model),),
            known_fields=self.known_fields,
            exact_output=dict(dialect.exact_output),
            refusal=self.refusal,
            sends_done=dialect.sends_done,
            **more,
        )

    def real_fault(self, folder: Path) -> str | None:
        """Why the engine's own program cannot be run here; null when it can."""
        if not self.engine.launchable:
            return f"{self.engine.name} is started by somebody else"
        context = self.context(self.real_cache_dir(folder), model=self.real_model(), **self.settings)
        faults = self.engine().check(context)
        return faults[0] if faults else None

    @pytest.fixture
    def life_of(self, tmp_path: Path) -> Callable[..., Life]:
        """Makes what the life is tested with: the engine's own program where it is installed, else the stand-in, with the
        manners given."""

        def make(*, dies_with: tuple[str, int] | None = None, stand_in_only: bool = False, **manners: Any) -> Life:
            fault = self.real_fault(tmp_path)
            port = free_port(HOST)
            settings: dict[str, Any] = {"stop_timeout_s": 5.0, "ready_timeout_s": 120.0, **self.settings}
            if fault is None and not stand_in_only:
                cache_dir = self.real_cache_dir(tmp_path)
                context = self.context(cache_dir, port=port, model=self.real_model(), **settings)
                self.engine().prepare(context, silent)
                return Life(context=context, real=True)
            if self.program is None:
                pytest.skip(fault or "there is no stand-in for this engine")
            stand_in = write_stand_in(
                tmp_path / "bin" / self.program,
                self.manners(**manners),
                host=HOST,
                port=port,
                log=self.sample_log,
                dies_with=dies_with,
                verbs=self.stand_in_verbs(),
            )
            settings.update(self.stand_in_settings(tmp_path, stand_in))
            return Life(context=self.context(tmp_path / "cache", port=port, **settings), real=False)

        return make

    @pytest.fixture
    def launch(self, tmp_path: Path) -> Iterator[Callable[[LaunchContext], RunningEngine]]:
        """Launches by the launcher `process`; whatever a test leaves running is stopped."""
        started: list[RunningEngine] = []

        def start(context: LaunchContext) -> RunningEngine:
            running = ProcessLauncher().launch(
                self.engine(),
                context,
                LaunchSettings(name="process"),
                log_path=tmp_path / "engine.log",
                say=silent,
            )
            started.append(running)
            return running

        yield start
        for running in started:
            running.stop()

    def drive(
        self,
        running: RunningEngine,
        requests: Sequence[Request],
        folder: Path,
        watch: Callable[[Counts], StopReason | None] = lambda _: None,
    ) -> tuple[PhaseReport, list[Record]]:
        """Send the requests all at once, in this engine's dialect, as a run does; the records that come of it."""
        planned = []
        for request in requests:
            path, body = self.engine().body(request, running.model, WORKLOAD)
            planned.append(
                PlannedRequest(
                    request_id=request.request_id,
                    path=httpx.URL(running.base_url).path.rstrip("/") + path,
                    body=json.dumps(body).encode(),
                )
            )
        plan = PointPlan(requests=planned, concurrency=len(planned), timeout_s=120.0, connect_timeout_s=10.0)
        spool = folder / f"{time.monotonic_ns()}.spool"
        report = drive(target_of(running), plan, spool=spool, watch=watch)
        asked = {request.request_id: request.output_tokens for request in requests}
        return report, [
            record(
                exchange,
                run_id="conformance",
                point="0",
                warmup=False,
                planned_prompt_tokens=None,
                asked_output_tokens=asked[exchange.request_id],
            )
            for exchange in read_spool(spool)
        ]

    # what it says of itself

    def test_it_is_described(self) -> None:
        """A name for configs, settings that only add to the shared ones, paths from the root, a class that is cheap."""
        engine = self.engine()
        assert re.fullmatch(r"[a-z0-9_-]+", engine.name)
        assert 0 < engine.default_port < 65536
        assert issubclass(engine.settings_type, EngineSettings)
        assert is_dataclass(engine.settings_type)
        found = engine.settings_type(name=engine.name)
        with pytest.raises(AttributeError):
            found.port = 1  # type: ignore[misc]
        for path in (engine.health_path, engine.metrics_path, engine.version_path, engine.tokenize_path):
            assert path is None or path.startswith("/"), path
        assert not hasattr(engine, "__dict__") or not vars(engine), "an engine holds no state"

    def test_its_config_composes(self) -> None:
        """`engine=NAME` gives its own settings: its plugin is installed and its config group is found."""
        from servebench.config import compose_jobs

        somewhere = [] if self.engine.launchable else ["launch=attach", "launch.base_url=http://127.0.0.1:8000/v1"]
        (job,) = compose_jobs([f"engine={self.engine.name}", *somewhere], registry())
        assert type(job.settings.engine) is self.engine.settings_type
        assert job.settings.engine.name == self.engine.name
        assert registry().find("engine", self.engine.name) is self.engine

    def test_its_patterns_find_their_lines(self) -> None:
        """Every phase is in the sample of a log, in the order in which it is declared; every failure has its advice."""
        for marker, hint in itertools.zip_longest(self.engine.phases, self.engine.hints):
            re.compile(marker.pattern if marker else "")
            re.compile(hint.pattern if hint else "")
        assert {hint.kind for hint in self.engine.hints} <= KINDS
        if self.sample_log:
            at = [
                next((i for i, line in enumerate(self.sample_log) if re.search(marker.pattern, line)), None)
                for marker in self.engine.phases
            ]
            missing = [marker.phase for marker, place in zip(self.engine.phases, at, strict=True) if place is None]
            assert not missing, f"no line of sample_log tells of {missing}"
            assert at == sorted(place for place in at if place is not None)
        for kind, line in self.failures.items():
            kinds = [hint.kind for hint in self.engine.hints if re.search(hint.pattern, line)]
            assert kinds[:1] == [kind], f"{line!r} is taken for {kinds[:1]}"

    def test_its_emulation_tells_its_phases(self) -> None:
        """What is logged while it is emulated ends the same phases."""
        if self.engine.emulation == Emulation():
            pytest.skip("it is emulated as any other server")
        lines = [stage.line for stage in self.engine.emulation.loading]
        missing = [one.phase for one in self.engine.phases if not any(re.search(one.pattern, line) for line in lines)]
        assert not missing, f"no line of the emulation tells of {missing}"

    # the command

    def test_the_command_is_pure(self, tmp_path: Path) -> None:
        """Composed twice it is the same; nothing is written, nothing started, and no model needs to be there."""
        if not self.engine.launchable:
            with pytest.raises(ConfigError):
                self.engine().command(self.context(tmp_path))
            return
        before = set(psutil.Process().children(recursive=True))
        context = self.context(tmp_path / "cache")
        command = self.engine().command(context)
        assert command == self.engine().command(self.context(tmp_path / "cache"))
        assert not (tmp_path / "cache").exists()
        assert set(psutil.Process().children(recursive=True)) <= before
        assert command.argv
        assert all(isinstance(word, str) for word in command.argv)
        assert all(isinstance(word, str) for pair in command.env.items() for word in pair)
        assert "\0" not in "".join(command.argv)

    def test_the_command_says_where_to_listen(self, tmp_path: Path) -> None:
        """Port and host are in its words or its variables."""
        if not self.engine.launchable:
            pytest.skip(f"{self.engine.name} is started by somebody else")
        argv, env = self.composed(self.context(tmp_path, port=18123, host="127.0.0.7"))
        told = " ".join([*argv, *env.values()])
        assert "18123" in told
        assert "127.0.0.7" in told

    def test_its_container_fits(self, tmp_path: Path) -> None:
        """In its official image the command listens everywhere, and says only once what the image says itself."""
        container = self.engine.container
        if container is None:
            pytest.skip("it names no image")
        plain, _ = self.composed(self.context(tmp_path, executable=container.executable))
        assert not container.entrypoint or plain[: len(container.entrypoint)] == container.entrypoint
        command = container_command(self.engine(), self.context(tmp_path), DockerSettings(name="docker"), "name")
        at = command.argv.index(container.image)
        inside = command.argv[at + 1 :]
        assert inside
        assert inside[: len(container.entrypoint)] != container.entrypoint or not container.entrypoint
        assert EVERYWHERE in " ".join([*inside, *command.env.values()])

    def test_env_and_extra_args_reach_the_command(self, tmp_path: Path) -> None:
        """As they are, or refused with a reason."""
        if not self.engine.launchable:
            pytest.skip(f"{self.engine.name} is started by somebody else")
        context = self.context(tmp_path, env={"CONFORMANCE": "yes"}, extra_args={"conformance-flag": 987})
        refused = [line for line in self.engine().check(context) if line.startswith("engine.extra_args.")]
        argv, env = self.composed(context)
        assert env["CONFORMANCE"] == "yes"
        if refused:
            assert "987" in refused[0]
        else:
            told = " ".join([*argv, *env.values()])
            assert "conformance-flag" in told
            assert "987" in told

    @pytest.mark.parametrize(("name", "value"), [(name, value) for name in SHARED_SETTINGS for value in SAMPLES[name]])
    def test_no_setting_is_dropped_in_silence(self, name: str, value: Any, tmp_path: Path) -> None:
        """Each shared setting changes the command, or is refused with its name, its value and a reason."""
        if not self.engine.launchable:
            pytest.skip(f"{self.engine.name} is started by somebody else")
        if (name, value) in {(key, default) for key, default in self.own_defaults.items()}:
            pytest.skip(f"engine.{name}={value} is what {self.engine.name} does anyway")
        context = self.context(tmp_path, **{name: value})
        refused = [line for line in self.engine().check(context) if line.startswith(f"engine.{name}=")]
        if refused:
            assert re.match(rf"engine\.{name}={value}: .+", refused[0], re.IGNORECASE), refused[0]
            assert "\n" not in refused[0]
        else:
            assert self.composed(context) != self.composed(self.context(tmp_path)), (
                f"engine.{name}={value} changes nothing"
            )

    def test_a_missing_program_is_told(self, tmp_path: Path) -> None:
        """In one line, with the ways out."""
        if self.program is None:
            pytest.skip("it has no program of its own")
        settings = {**self.settings, "executable": "no-such-program-here"}
        faults = [line for line in self.engine().check(self.context(tmp_path, **settings)) if "no-such-program" in line]
        assert faults
        assert all("\n" not in line for line in faults)

    # the dialect

    @pytest.mark.parametrize("request_", [CHAT, TEXT], ids=["chat", "completions"])
    @pytest.mark.parametrize("exact", [False, True], ids=["free", "exact"])
    def test_bodies_are_understood(self, request_: Request, exact: bool) -> None:
        """A strict server takes each body: no field that the engine does not know, the length in its own way, the seed where
        it takes one, usage in the stream."""
        dialect = self.engine.dialect
        asked = replace(request_, exact_output=exact, seed=7)
        path, body = self.engine().body(asked, "model", WORKLOAD)
        assert json.loads(json.dumps(body)) == body, "a body must survive JSON"
        assert path == (dialect.chat_path if asked.messages else dialect.completions_path)
        assert ("messages" in body) != ("prompt" in body)
        assert body["stream"] is True
        assert (body.get("seed") == 7) == dialect.takes_seed
        for name, value in dialect.exact_output.items():
            assert (body.get(name) == value) == exact
        with FakeServer(self.manners()) as server, client(()) as http:
            answer = http.post(server.base_url + path, json=body)
            assert answer.status_code == 200, answer.text
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        usage = next(event["usage"] for event in events if event.get("usage"))
        if exact and dialect.exact_output:
            assert usage["completion_tokens"] == asked.output_tokens

    def test_a_schema_is_asked_for_where_it_is_enforced(self) -> None:
        """And not sent where it would do nothing."""
        _, body = self.engine().body(replace(CHAT, schema=SCHEMA), "model", WORKLOAD)
        assert (json.dumps(SCHEMA) in json.dumps(body)) == self.engine.dialect.json_schema
        with FakeServer(self.manners()) as server, client(()) as http:
            assert http.post(f"{server.base_url}/chat/completions", json=body).status_code == 200

    def test_a_running_server_can_be_attached_to(self, tmp_path: Path) -> None:
        """The adapter finds its paths on a server that somebody else started, and leaves it running."""
        with FakeServer(self.manners()) as server:
            running = AttachLauncher().launch(
                self.engine(),
                self.context(tmp_path),
                AttachSettings(name="attach", base_url=server.base_url),
                log_path=tmp_path / "log",
                say=silent,
            )
            assert running.version == ("0.0.stand-in" if self.engine.version_path else None)
            assert not running.stop().stopped
            with client(()) as http:
                generate_token(http, server.base_url, self.engine(), running.model, 5.0)

    # the life

    def test_the_real_program_was_met(self, tmp_path: Path) -> None:
        """Whether what follows ran with the engine's own program."""
        fault = self.real_fault(tmp_path)
        if fault is not None:
            with_what = "with a stand-in" if self.program else "not"
            pytest.skip(f"the life was tested {with_what}: {fault}")

    def test_life(
        self, life_of: Callable[..., Life], launch: Callable[[LaunchContext], RunningEngine], tmp_path: Path
    ) -> None:
        """It starts by its phases, generates in its dialect, counts, and leaves nothing when stopped."""
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
        if dialect.json_schema:
            answer = json.loads(by_id["schema"].text)
            assert set(answer) == {"city", "rain"}
            assert answer["city"] in ("Paris", "Rome")
            assert isinstance(answer["rain"], bool)
        self.prove_stopped(running, life)

    def prove_stopped(self, running: RunningEngine, life: Life) -> None:
        """Stop it, twice, and look for what is left."""
        assert running.pid is not None
        process = psutil.Process(running.pid) if psutil.pid_exists(running.pid) else None
        began = time.monotonic()
        report = running.stop()
        assert report.stopped
        assert report.leftover == ()
        assert time.monotonic() - began < life.context.engine.stop_timeout_s + 20
        assert running.stop() == report, "a second stop does nothing"
        assert process is None or not process.is_running()
        assert not accepts_connections(HOST, life.context.port)

    def test_overload(
        self, life_of: Callable[..., Life], launch: Callable[[LaunchContext], RunningEngine], tmp_path: Path
    ) -> None:
        """A crowd is served or refused, request by request; nothing hangs, and the server answers afterwards."""
        life = life_of(max_running=2, gap_s=0.1)
        running = launch(life.context)
        crowd = [replace(CHAT, request_id=str(index), output_tokens=8) for index in range(self.crowd)]
        _, records = self.drive(running, crowd, tmp_path)
        assert len(records) == self.crowd
        served = [one for one in records if one.outcome == "ok"]
        refused = [one for one in records if one.outcome != "ok"]
        assert served
        for one in refused:
            assert one.outcome == "stream_error" or (one.outcome == "http_error" and one.http_status in BUSY), one.error
        if not life.real:
            assert refused, "the stand-in serves two at once"
            expected = "stream_error" if self.refusal == "event" else "http_error"
            assert {one.outcome for one in refused} == {expected}
        assert running.died() is None
        with client(()) as http:
            generate_token(http, running.base_url, self.engine(), running.model, 30.0)
        self.prove_stopped(running, life)

    def test_death_during_load(
        self, life_of: Callable[..., Life], launch: Callable[[LaunchContext], RunningEngine], tmp_path: Path
    ) -> None:
        """A kill -9 while it answers is seen at once, told in one line, and leaves nothing."""
        life = life_of(gap_s=0.4)
        running = launch(life.context)
        assert running.pid is not None
        pid = running.pid
        killed_at: list[float] = []

        def kill(counts: Counts) -> StopReason | None:
            if counts.reads and not killed_at:
                os.kill(pid, signal.SIGKILL)
                killed_at.append(time.monotonic())
            return StopReason.ENGINE_DIED if running.died() else None

        exact = bool(self.engine.dialect.exact_output)
        requests = [replace(CHAT, request_id=str(i), output_tokens=100, exact_output=exact) for i in range(2)]
        _, records = self.drive(running, requests, tmp_path, kill)
        assert killed_at, "it answered nothing"
        assert time.monotonic() - killed_at[0] < 10
        assert "ok" not in {one.outcome for one in records}
        deadline = time.monotonic() + 5
        while (told := running.died()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert told is not None
        assert told.startswith(f"{self.engine.name} died: killed by SIGKILL")
        assert "\n" not in told
        self.prove_stopped(running, life)

    def test_death_while_it_starts(
        self, life_of: Callable[..., Life], launch: Callable[[LaunchContext], RunningEngine]
    ) -> None:
        """A kill -9 while we wait for it ends the wait at once."""
        life = life_of()
        done = threading.Event()

        def kill() -> None:
            while not done.is_set():
                # a command may become another program, so the engine is told by who started it
                for child in psutil.Process().children():
                    try:
                        if any(word.endswith("guard.py") for word in child.cmdline()):
                            for engine in child.children():
                                engine.kill()
                                return
                    except psutil.Error:
                        continue
                time.sleep(0.002)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        began = time.monotonic()
        try:
            with pytest.raises(EngineError, match=f"{self.engine.name} died"):
                launch(life.context)
        finally:
            done.set()
            killer.join()
        assert time.monotonic() - began < 20
        assert not accepts_connections(HOST, life.context.port)

    def test_its_failures_are_explained(
        self, life_of: Callable[..., Life], launch: Callable[[LaunchContext], RunningEngine]
    ) -> None:
        """A start that fails with a known line is told with its kind and an advice."""
        if not self.failures:
            pytest.skip("the plugin names no failures")
        for kind, line in self.failures.items():
            life = life_of(dies_with=(line, 1), stand_in_only=True)
            with pytest.raises(EngineError) as error:
                launch(life.context)
            assert error.value.kind == kind, line
            advice = next(hint.advice for hint in self.engine.hints if re.search(hint.pattern, line))
            assert advice in str(error.value)
