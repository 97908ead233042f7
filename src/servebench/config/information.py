"""The composed config of one run as text: `--cfg job`."""

from collections.abc import Sequence

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from servebench.config.arguments import parse_arguments
from servebench.config.composition import compose_for_display
from servebench.config.problems import summarize_error
from servebench.registry.registry import Registry
from servebench.util.errors import ConfigError


def config_text(
    arguments: Sequence[str], registry: Registry, *, resolve: bool = False, package: str | None = None
) -> str:
    """Return the config of the run of these words as YAML, or a `package` of it: a group or a dotted key. Raises ConfigError with
    one line for each problem."""
    words = parse_arguments(arguments)
    if words.multirun:
        raise ConfigError("--cfg shows one config; leave out -m")
    prepared, problems = compose_for_display(words, registry)
    if problems or prepared.config is None:
        raise ConfigError([problem.text for problem in problems])
    shown = OmegaConf.masked_copy(prepared.config, [str(key) for key in prepared.config if key != "hydra"])
    try:
        part = OmegaConf.select(shown, package) if package else shown
        if part is None:
            raise ConfigError(
                f"--package {package}: the config has no such part; the groups are {', '.join(map(str, shown))}"
            )
        return OmegaConf.to_yaml(part, resolve=resolve) if OmegaConf.is_config(part) else f"{part}\n"
    except OmegaConfBaseException as error:
        raise ConfigError(summarize_error(error)) from error
