"""Write the skeleton of a plugin: a working distribution of an engine, a scorer or a workload, with tests that pass."""

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from servebench import __version__
from servebench.util.errors import ConfigError, reason_of

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
NO_NAMES = ("base", "none", "null", "true", "false", "yes", "no", "on", "off", "inf", "nan")
"""What Python, YAML, Hydra or a config group reads as something else."""
SUFFIX = ".in"
"""The suffix of template files, so that no tool takes them for code."""

IN_PATHS = re.compile(r"(PACKAGE|MODULE|NAME)")
IN_TEXTS = re.compile(r"@([A-Z_]+)@")

KINDS = {"engine": "engine", "scorer": "quality", "workload": "workload"}
"""What a plugin can add, with the config group that its name becomes an option of."""

NEXT_STEPS = {
    "engine": ("an engine plugin that runs with a stand-in for {name}-server", "engine={name} --cfg command"),
    "scorer": ("a scorer plugin with eight questions", "quality={name}"),
    "workload": ("a workload plugin with three topics", "workload={name} --preview"),
}
"""What the skeleton of each kind is, and the words that try it."""


def placeholders(name: str) -> dict[str, str]:
    """Return the values of the template's placeholders."""
    module = name.replace("-", "_")
    major, minor = __version__.split(".")[:2]
    bounds = f">={major}.{minor},<{major}.{int(minor) + 1}"
    return {
        "NAME": name,
        "MODULE": module,
        "PACKAGE": f"servebench_{module}",
        "CLASS": "".join(part.capitalize() for part in name.split("-")),
        "SUITE": f"servebench-suite{bounds}",
        "SUITE_TESTING": f"servebench-suite[testing]{bounds}",
    }


def skeleton(name: str, kind: str = "engine") -> dict[str, str]:
    """Return the distribution's files: the text by path below its folder."""
    values = placeholders(name)
    found = {}
    for place, text in _template_files(files(__name__) / "template" / kind, ""):
        path = _fill(place.removesuffix(SUFFIX), values, IN_PATHS)
        found[path] = _fill(text, values, IN_TEXTS)
    return found


def _fill(text: str, values: Mapping[str, str], placeholder: re.Pattern[str]) -> str:
    return placeholder.sub(lambda match: values[match.group(1)], text)


def _template_files(folder: Traversable, prefix: str) -> Iterable[tuple[str, str]]:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            yield from _template_files(item, f"{prefix}{item.name}/")
        elif item.name.endswith(SUFFIX):
            yield prefix + item.name, item.read_text(encoding="utf-8")


def write_plugin(name: str, *, kind: str, directory: Path, taken: Mapping[str, Iterable[str]]) -> str:
    """Write the distribution below `directory` and return what to do next. `taken` has the known names of each config group.

    Raises ConfigError for an invalid or taken name, and for a folder that exists or cannot be written.
    """
    a_kind = f"an {kind}" if kind == "engine" else f"a {kind}"
    if not NAME.fullmatch(name) or name in NO_NAMES:
        raise ConfigError(
            f"plugins new: '{name}' is not a valid name for {a_kind}: use lower-case letters, digits and single dashes, "
            "and no word of Python or of configs"
        )
    if name in taken.get(KINDS[kind], ()):
        raise ConfigError(f"plugins new: {a_kind} named '{name}' already exists; choose another name")
    folder = directory / f"servebench-{name}"
    if folder.exists():
        raise ConfigError(f"plugins new: {folder} already exists; choose another name or another --dir")
    try:
        for path, text in skeleton(name, kind).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"plugins new: cannot write {folder}: {reason_of(error)}; choose another --dir") from error
    what, trial = (text.format(name=name) for text in NEXT_STEPS[kind])
    return (
        f"{folder}: {what}; its README says what to change\n"
        f"  pip install -e '{folder}[test]'\n  pytest {folder}\n  servebench {trial}\n"
    )
