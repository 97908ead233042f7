"""The hooks of this plugin: its scorers, and the folder of their config files."""

from collections.abc import Mapping, Sequence

from servebench.plugin import hookimpl

requires_api = 1


@hookimpl
def servebench_scorers() -> Mapping[str, str]:
    """Return where the scorers are, so that a run imports the one that it uses."""
    return {
        "humaneval": "servebench_graders.humaneval:HumanEvalScorer",
        "judge": "servebench_graders.judge:JudgeScorer",
        "lm_eval": "servebench_graders.lm_eval:LmEvalScorer",
        "rouge": "servebench_graders.rouge:RougeScorer",
    }


@hookimpl
def servebench_config_paths() -> Sequence[str]:
    """Return the folder of the config files."""
    return ("pkg://servebench_graders.conf",)
