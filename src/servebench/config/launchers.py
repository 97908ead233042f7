"""Check `hydra/launcher`, which decides where the runs of a study are done, and its keys."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from servebench.config.problems import Problem, format_value, summarize_error
from servebench.config.validate import check_section
from servebench.contracts.cluster import LAUNCHERS, ClusterSettings
from servebench.util.errors import ConfigError

KEY = "hydra.launcher"
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def select_launcher(config: DictConfig) -> tuple[ClusterSettings | None, list[Problem]]:
    """Return the launcher of a composed config; None for Hydra's `basic`: one run after another on this machine."""
    try:
        node = OmegaConf.select(config, KEY)
        found = OmegaConf.to_container(node, resolve=True, throw_on_missing=False) if node is not None else {}
    except OmegaConfBaseException as error:
        return None, [Problem(f"{KEY}: {summarize_error(error)}", "value", KEY)]
    assert isinstance(found, dict)
    plain = {str(key): value for key, value in found.items()}
    if not plain or plain.get("_target_") == BASIC:
        return None, []
    return _checked(plain)


def launcher_from_dict(stored: Mapping[str, Any]) -> ClusterSettings | None:
    """Return the launcher of a stored study; None if it ran on one machine. Raises ConfigError."""
    if not stored:
        return None
    settings, problems = _checked(dict(stored))
    if problems:
        raise ConfigError([problem.text for problem in problems])
    return settings


def _checked(plain: dict[str, Any]) -> tuple[ClusterSettings | None, list[Problem]]:
    kind = LAUNCHERS.get(str(plain.get("name")))
    if kind is None:
        chosen = plain.get("name") or plain.get("_target_")
        line = (
            f"hydra/launcher: {format_value(chosen)} is not supported; available: basic, {', '.join(sorted(LAUNCHERS))}"
        )
        return None, [Problem(line, "value", KEY)]
    return check_section(KEY, plain, {KEY: kind})
