"""The page of the documentation that lists the config keys, from the YAML files in `conf/` and in the plugins of this repository.

`python -m servebench.config.reference > docs/config.md` writes it; a test fails while it is out of date.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servebench.registry.conf import conf_dir
from servebench.util.markdown import table

INTRODUCTION = """# Config keys

This page is generated from the files in `conf/` and in the plugins of this repository: change them
there, then run `make reference`.

A group is chosen with `GROUP=OPTION` (`engine=vllm`), a key set with `GROUP.KEY=VALUE` (`engine.max_model_len=8192`). `null`
leaves the choice to the engine or the workload, `???` has to be set. Flags of an engine without a key of their own go into
`engine.extra_args`.
"""
GROUPS = ("engine", "launch", "model", "gpu", "workload", "load", "quality", "slo", "telemetry", "tracking", "study")
CATALOGUES = ("model", "gpu")
"""Groups whose options differ in data only."""
UNLISTED = ("name", "defaults")
_KEY = re.compile(r"( *)(\w+):(?: +(.*?))?(?:  +# *(.*))?$")


@dataclass(frozen=True)
class ConfigKey:
    """A key with its dotted name, its value as written, and the comment above it."""

    name: str
    value: str
    meaning: str


def config_reference() -> str:
    """Return the page as Markdown."""
    return "\n".join([INTRODUCTION, *(line for group in GROUPS for line in _section(group))]) + "\n"


def _section(group: str) -> Iterator[str]:
    files = {path.stem: path for path in sorted(_files(group))}
    yield f"## {group}\n"
    base = files.pop("base", None)
    if base is not None:
        purpose, keys = read_keys(base.read_text())
        yield f"{purpose}\n"
        yield from [*_keys(group, keys), ""]
    if group in CATALOGUES:
        yield f"Options: {', '.join(files)}.\n"
        return
    for option, path in files.items():
        purpose, keys = read_keys(path.read_text())
        yield f"### {group}={option}\n\n{purpose}\n"
        yield from [*_keys(group, keys), ""] if keys else []


def _keys(group: str, keys: list[ConfigKey]) -> list[str]:
    rows = [[f"{group}.{one.name}", one.value, one.meaning] for one in keys]
    return table(["key", "default", "meaning"], rows, left=(0, 1, 2))


def _files(group: str) -> Iterator[Path]:
    conf = conf_dir()
    yield from (conf / group).glob("*.yaml")
    yield from conf.parent.glob(f"plugins/*/src/*/conf/{group}/*.yaml")


def read_keys(text: str) -> tuple[str, list[ConfigKey]]:
    """Return what a config file is for (the comment at its top) and its keys, in the order written."""
    lines = text.splitlines()
    top = next((index for index, line in enumerate(lines) if not line.startswith("#")), len(lines))
    purpose = " ".join(line.lstrip("# ") for line in lines[:top])
    keys: list[ConfigKey] = []
    comment: list[str] = []
    parents: list[str] = []
    for line in lines[top:]:
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("# "))
        elif match := _KEY.match(line):
            indent, name, value, beside = match.groups()
            parents = [*parents[: len(indent) // 2], name]
            if value and parents[0] not in UNLISTED:
                keys.append(ConfigKey(".".join(parents), value, " ".join([*comment, *filter(None, [beside])])))
            comment = []
        else:
            comment = []
    return purpose, keys


if __name__ == "__main__":
    sys.stdout.write(config_reference())
