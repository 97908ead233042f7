"""Conformance of an engine's description: name, settings, log patterns."""

from __future__ import annotations

import itertools
import re
from dataclasses import is_dataclass

import pytest

from servebench.contracts.emulation import Emulation
from servebench.contracts.settings import EngineSettings
from servebench.registry.registry import registry
from servebench.testing.engine.suite import KINDS, EngineSuite


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
        from servebench.config import compose_jobs

        target = [] if self.engine.launchable else ["launch=attach", "launch.base_url=http://127.0.0.1:8000/v1"]
        (job,) = compose_jobs([f"engine={self.engine.name}", *target], registry())
        assert type(job.settings.engine) is self.engine.settings_type
        assert job.settings.engine.name == self.engine.name
        assert registry().find("engine", self.engine.name) is self.engine

    def test_log_patterns(self) -> None:
        """Every phase is in `sample_log`, in the declared order; every failure is recognized by its hint."""
        for marker, hint in itertools.zip_longest(self.engine.phases, self.engine.hints):
            re.compile(marker.pattern if marker else "")
            re.compile(hint.pattern if hint else "")
        assert {hint.kind for hint in self.engine.hints} <= KINDS
        if self.sample_log:
            positions = [
                next((i for i, line in enumerate(self.sample_log) if re.search(marker.pattern, line)), None)
                for marker in self.engine.phases
            ]
            missing = [
                marker.phase for marker, position in zip(self.engine.phases, positions, strict=True) if position is None
            ]
            assert not missing, f"no line of sample_log matches the phases {missing}"
            assert positions == sorted(position for position in positions if position is not None)
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
