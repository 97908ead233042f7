"""What every engine plugin must satisfy, as tests to inherit."""

from servebench.testing.engine.adapter import CommandTests, DescriptionTests, DialectTests
from servebench.testing.engine.life import LifeTests


class EngineConformance(DescriptionTests, CommandTests, DialectTests, LifeTests):
    """Inherit from this class, set `engine`, and declare what the suite cannot know (see `EngineSuite`).

        class TestMine(EngineConformance):
            engine = MyEngine
            program = "my-server"

    Commands, settings, patterns and request bodies are always checked. The life cycle runs with the engine's own program if
    it is installed, else with a stand-in: an executable named `program` that serves what the adapter expects. Then
    `test_real_program_was_used` is skipped with the reason.
    """
