"""Conformance of an engine's adapter: its description, its command and its requests. Nothing is started."""

import json
import re
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

from servebench.contracts.emulation import Emulation
from servebench.contracts.request import Request
from servebench.contracts.settings import EngineSettings
from servebench.engine.adapters.flags import SHARED_SETTINGS
from servebench.engine.launchers.attach import AttachLauncher, AttachSettings
from servebench.engine.launchers.docker import EVERYWHERE, DockerSettings, container_command
from servebench.engine.supervisor.endpoint import generate_token
from servebench.protocol.kinds.table import compose, kind_of
from servebench.testing.command import assert_is_installed
from servebench.testing.engine.suite import CHAT, KINDS, SAMPLES, SCHEMA, TEXT, EngineSuite, ignore
from servebench.testing.server import FakeServer
from servebench.util.bounded_http import client
from servebench.util.errors import ConfigError


class DescriptionTests(EngineSuite):
    """The engine's description is valid."""

    def test_description(self) -> None:
        """A valid name, settings that extend the shared ones, paths from the root, and a stateless class."""
        engine = self.engine()
        assert re.fullmatch(r"[a-z0-9_-]+", engine.name)
        assert 0 < engine.default_port < 65536
        assert issubclass(engine.settings_type, EngineSettings)
        assert is_dataclass(engine.settings_type)
        settings = engine.settings_type(name=engine.name)
        with pytest.raises(AttributeError):
            settings.port = 1  # type: ignore[misc]
        for path in (engine.health_path, engine.metrics_path, engine.version_path, engine.tokenize_path):
            assert path is None or path.startswith("/"), path
        assert not hasattr(engine, "__dict__") or not vars(engine), "an engine must not hold state"

    def test_config_composes(self) -> None:
        """`engine=NAME` selects its own settings: the plugin is installed and its config group is found."""
        target = [] if self.engine.launchable else ["launch=attach", "launch.base_url=http://127.0.0.1:8000/v1"]
        assert_is_installed("engine", self.engine, *target)

    def test_log_patterns(self) -> None:
        """Every phase is in `sample_log`, in the declared order; every failure is recognized by its hint."""
        for pattern in [one.pattern for one in self.engine.phases] + [one.pattern for one in self.engine.hints]:
            re.compile(pattern)
        assert {hint.kind for hint in self.engine.hints} <= KINDS
        if self.sample_log:
            positions = {
                marker.phase: next((i for i, line in enumerate(self.sample_log) if re.search(marker.pattern, line)), -1)
                for marker in self.engine.phases
            }
            missing = [phase for phase, position in positions.items() if position < 0]
            assert not missing, f"no line of sample_log matches the phases {missing}"
            assert list(positions.values()) == sorted(positions.values())
        for kind, line in self.failures.items():
            kinds = [hint.kind for hint in self.engine.hints if re.search(hint.pattern, line)]
            assert kinds[:1] == [kind], f"{line!r} is recognized as {kinds[:1]}"

    def test_emulated_log_has_all_phases(self) -> None:
        """The log of the emulated engine ends the same phases."""
        if self.engine.emulation == Emulation():
            pytest.skip("it uses the default emulation")
        lines = [stage.line for stage in self.engine.emulation.loading]
        missing = [
            marker.phase for marker in self.engine.phases if not any(re.search(marker.pattern, line) for line in lines)
        ]
        assert not missing, f"no line of the emulation matches the phases {missing}"


class CommandTests(EngineSuite):
    """The command is pure and contains all settings."""

    def test_command_is_pure(self, tmp_path: Path) -> None:
        """Composing it twice gives the same; it writes and starts nothing and needs no model."""
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
        assert all(isinstance(argument, str) for argument in command.argv)
        assert all(isinstance(text, str) for pair in command.env.items() for text in pair)
        assert "\0" not in "".join(command.argv)

    def test_command_has_host_and_port(self, tmp_path: Path) -> None:
        """In its arguments or variables."""
        self.skip_unless_launchable()
        argv, env = self.composed(self.context(tmp_path, port=18123, host="127.0.0.7"))
        text = " ".join([*argv, *env.values()])
        assert "18123" in text
        assert "127.0.0.7" in text

    @pytest.mark.parametrize("source", ["spans", "after_load"])
    def test_timings_source(self, source: Literal["spans", "after_load"], tmp_path: Path) -> None:
        """`engine.request_timings` reaches the command: the endpoint for spans, and flags to keep times until after the load."""
        self.skip_unless_launchable()
        if source not in self.engine.timings_sources:
            pytest.skip(f"{self.engine.name} has no such timings")
        plain = self.composed(self.context(tmp_path))
        context = self.context(tmp_path, request_timings=source)
        if source == "spans":
            context = replace(context, spans_endpoint="http://127.0.0.1:4318/v1/traces")
        argv, env = self.composed(context)
        assert (argv, env) != plain
        assert source != "spans" or "127.0.0.1:4318" in " ".join([*argv, *env.values()])

    def test_container_command(self, tmp_path: Path) -> None:
        """In its official image the command listens on all addresses and does not repeat the image's entrypoint."""
        container = self.engine.container
        if container is None:
            pytest.skip("it has no official image")
        plain, _ = self.composed(self.context(tmp_path, executable=container.executable))
        assert not container.entrypoint or plain[: len(container.entrypoint)] == container.entrypoint
        command = container_command(self.engine(), self.context(tmp_path), DockerSettings(name="docker"), "name")
        inside = command.argv[command.argv.index(container.image) + 1 :]
        assert inside
        assert inside[: len(container.entrypoint)] != container.entrypoint or not container.entrypoint
        assert EVERYWHERE in " ".join([*inside, *command.env.values()])

    def test_env_and_extra_args_reach_the_command(self, tmp_path: Path) -> None:
        """Unchanged, or they are rejected with a reason."""
        self.skip_unless_launchable()
        context = self.context(tmp_path, env={"CONFORMANCE": "yes"}, extra_args={"conformance-flag": 987})
        rejected = [line for line in self.engine().check(context) if line.startswith("engine.extra_args.")]
        argv, env = self.composed(context)
        assert env["CONFORMANCE"] == "yes"
        if rejected:
            assert "987" in rejected[0]
        else:
            text = " ".join([*argv, *env.values()])
            assert "conformance-flag" in text
            assert "987" in text

    @pytest.mark.parametrize(("name", "value"), [(name, value) for name in SHARED_SETTINGS for value in SAMPLES[name]])
    def test_no_setting_is_ignored(self, name: str, value: Any, tmp_path: Path) -> None:
        """Each shared setting changes the command, or is rejected with its name, value and a reason."""
        self.skip_unless_launchable()
        if name in self.own_defaults and value == self.own_defaults[name]:
            pytest.skip(f"engine.{name}={value} is the default of {self.engine.name}")
        context = self.context(tmp_path, **{name: value})
        rejected = [line for line in self.engine().check(context) if line.startswith(f"engine.{name}=")]
        if rejected:
            assert re.match(rf"engine\.{name}={value}: .+", rejected[0], re.IGNORECASE), rejected[0]
            assert "\n" not in rejected[0]
        else:
            assert self.composed(context) != self.composed(self.context(tmp_path)), (
                f"engine.{name}={value} changes nothing"
            )

    def test_missing_program_is_reported(self, tmp_path: Path) -> None:
        """In one line."""
        if self.program is None:
            pytest.skip("it has no program")
        settings = {**self.settings, "executable": "no-such-program-here"}
        problems = [
            line for line in self.engine().check(self.context(tmp_path, **settings)) if "no-such-program" in line
        ]
        assert problems
        assert all("\n" not in line for line in problems)


class DialectTests(EngineSuite):
    """Requests suit the engine."""

    @pytest.mark.parametrize("request_", [CHAT, TEXT], ids=["chat", "completions"])
    @pytest.mark.parametrize("exact", [False, True], ids=["free", "exact"])
    def test_request_bodies(self, request_: Request, exact: bool) -> None:
        """A strict server accepts each body: only known fields, the exact length in the engine's way, a seed if the engine takes
        one, usage in the stream."""
        dialect = self.engine.dialect
        request = replace(request_, exact_output=exact, seed=7)
        path, body = compose(self.engine(), request, self.engine().served_model(self.model))
        assert json.loads(json.dumps(body)) == body, "a body must survive JSON"
        assert path == kind_of(request).path_of(dialect)
        assert ("messages" in body) != ("prompt" in body)
        assert body["stream"] is True
        assert (body.get("seed") == 7) == dialect.takes_seed
        for name, value in dialect.exact_output.items():
            assert (body.get(name) == value) == exact
        with FakeServer(self.server()) as server, client(()) as http:
            answer = http.post(server.base_url + path, json=body)
            assert answer.status_code == 200, answer.text
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        # an engine may send a usage of zeros before
        usage = [event["usage"] for event in events if event.get("usage")][-1]
        if exact and dialect.exact_output:
            assert usage["completion_tokens"] == request.output_tokens

    def test_schema_is_sent_if_it_is_enforced(self) -> None:
        """And not otherwise."""
        _, body = compose(self.engine(), replace(CHAT, schema=SCHEMA), self.engine().served_model(self.model))
        assert (json.dumps(SCHEMA) in json.dumps(body)) == self.engine.dialect.json_schema
        with FakeServer(self.server()) as server, client(()) as http:
            assert http.post(f"{server.base_url}/chat/completions", json=body).status_code == 200

    def test_attach(self, tmp_path: Path) -> None:
        """The adapter works with a server that is already running, and leaves it running."""
        with FakeServer(self.server()) as server:
            running = AttachLauncher().launch(
                self.engine(),
                self.context(tmp_path),
                AttachSettings(name="attach", base_url=server.base_url),
                log_path=tmp_path / "log",
                say=ignore,
            )
            assert (running.version is not None) == (self.engine.version_path is not None)
            assert not running.stop().stopped
            with client(()) as http:
                generate_token(http, server.base_url, self.engine(), running.model, 5.0)
