"""The hooks of this plugin: its scorers, and the folder of their config files."""

from collections.abc import Sequence

from servebench.plugin import Scorer, hookimpl

requires_api = 1


@hookimpl
def servebench_scorers() -> Sequence[type[Scorer]]:
    """Return the scorers."""
    from servebench_graders.humaneval import HumanEvalScorer
    from servebench_graders.judge import JudgeScorer
    from servebench_graders.lm_eval import LmEvalScorer
    from servebench_graders.rouge import RougeScorer

    return (HumanEvalScorer, RougeScorer, JudgeScorer, LmEvalScorer)


@hookimpl
def servebench_config_paths() -> Sequence[str]:
    """Return the folder of the config files."""
    return ("pkg://servebench_graders.conf",)
