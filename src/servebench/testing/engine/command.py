"""Conformance of an engine's command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from servebench.engine.adapters.flags import SHARED_SETTINGS
from servebench.engine.launchers.docker_command import EVERYWHERE, DockerSettings, container_command
from servebench.testing.engine.suite import SAMPLES, EngineSuite
from servebench.util.errors import ConfigError


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
        if not self.engine.launchable:
            pytest.skip(f"{self.engine.name} cannot be started by servebench")
        argv, env = self.composed(self.context(tmp_path, port=18123, host="127.0.0.7"))
        text = " ".join([*argv, *env.values()])
        assert "18123" in text
        assert "127.0.0.7" in text

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
        if not self.engine.launchable:
            pytest.skip(f"{self.engine.name} cannot be started by servebench")
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
        if not self.engine.launchable:
            pytest.skip(f"{self.engine.name} cannot be started by servebench")
        if (name, value) in {(key, default) for key, default in self.own_defaults.items()}:
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
