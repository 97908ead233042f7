"""Problems of a config, one line each, and how values, names and errors are written in them."""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped, unused-ignore]

from servebench.registry.conf import install_command
from servebench.registry.registry import DISABLE_VARIABLE, Registry
from servebench.registry.shorthand import RENAMED, RENAMED_KEYS

Kind = Literal["words", "syntax", "group", "compose", "key", "value", "class", "combination", "unused"]
"""`words`: an option of the command line. `syntax`: an override that cannot be read. `group`: an unknown group or
option. `compose`: files that do not compose. `key`: an unknown key. `value`: a value of the wrong type or out of range.
`class`: nothing installed offers it. `combination`: settings that exclude each other. `unused`:
a setting without an effect in a run."""

_LONGEST_VALUE = 80
_LONGEST_LINE = 300
_NOISE = re.compile(
    r"^(See https?:|full_key:|object_type=|reference_type=|To append to your|Set the environment|\^$|Search path:)"
)
_KINDS_DIFFER = re.compile(
    r"error merging override \+*+([^=]++)=(.*): cannot merge DictConfig with ListConfig\.?", re.I
)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `path` is the dotted key it concerns (empty: none)."""

    text: str
    kind: Kind
    path: str = ""


def format_value(value: Any) -> str:
    """Return a value as a config file writes it: null, true, 'text', a list; long ones are cut."""
    if isinstance(value, str):
        text = repr(value)
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError):
            text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`, or its own new name; None if there is none.

    For a dotted name, try keys of the same section first, then all keys by their last part (right key, wrong section), then
    whole names.
    """
    candidates = sorted(set(known))
    if RENAMED_KEYS.get(name) in candidates:
        return RENAMED_KEYS[name]
    name = name.lower()
    section, dot, rest = name.partition(".")
    within = {item.partition(".")[2]: item for item in candidates if dot and item.startswith(f"{section}.")}
    leaves: dict[str, str] = {}
    for item in candidates:
        leaves.setdefault(item.rpartition(".")[2], item)
    whole = {item: item for item in candidates}
    tries = ((rest, within, 0.6), (name.rpartition(".")[2], leaves, 0.85), (name, {} if within else whole, 0.7))
    for wanted, names, cutoff in tries:
        close = difflib.get_close_matches(wanted, names, n=1, cutoff=cutoff)
        if close:
            return names[close[0]]
    return None


def suggest(name: str, known: Sequence[str], *, listed: bool = False) -> str:
    """Return a hint for an unknown name: the nearest known one, and with `listed` all of them."""
    near = nearest_name(name, known)
    parts = [] if near is None else [f"did you mean '{near}'?"]
    if not known:
        parts.append("there are none")
    elif len(known) == 1 and listed:
        parts.append(f"the only one is '{known[0]}'")
    elif listed or near is None:
        parts.append(f"available: {', '.join(sorted(known))}")
    return " ".join(parts)


def summarize_error(error: BaseException) -> str:
    """Return an error of Hydra, OmegaConf or YAML in one line, without its advice for programmers."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem}"
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    if lines and lines[0].endswith(":"):
        lines = [" ".join(lines[:2])]
    text = lines[0] if lines else ""
    cause = error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        reason = summarize_error(cause)
        # OmegaConf repeats the message in the cause when a debugger or a coverage tracer is active
        same = not text or reason.rstrip(".").lower() in text.lower()
        text = reason if same else f"{text.rstrip('.')}: {reason}"
    text = text or type(error).__name__
    where, said, what = text.partition("': ")
    if said and where.startswith("In '"):
        text = f"{where}{said}{what[:1].lower()}{what[1:]}"
    text = text[0].lower() + text[1:]
    if found := _KINDS_DIFFER.fullmatch(text):
        # the message is the same for a mapping in place of a list
        kind = "list" if found[2].startswith("{") else "mapping, as in '{name: value}'"
        text = f"{found[1]} must be a {kind} (got {found[2]})"
    return text.rstrip(".") if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 3] + "..."


def without_duplicates(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems in order, each text once: the runs of a sweep share most of theirs."""
    return list({problem.text: problem for problem in problems}.values())


_ENGINES = ("llamacpp", "lmdeploy", "ollama", "tgi", "triton", "transformers")
_GRADERS = ("humaneval", "judge", "lm_eval", "rouge")
DISTRIBUTIONS = {
    "engine": {name: f"servebench-{name}" for name in _ENGINES},
    "quality": dict.fromkeys(_GRADERS, "servebench-graders"),
}
"""The plugins of this project that offer an option, by group and option."""


def missing_option(group: str, name: str, registry: Registry, *, listed: tuple[str, ...] = ()) -> str:
    """Return the message for an unavailable `group=name`. `listed` are the options of the config folders."""
    if (line := missing_plugin(group, name, registry)) is not None:
        return line
    offered = tuple(registry.kinds.get(group, ()))
    if name in listed and group in registry.kinds:
        return (
            f"{group}={name} has a config file but no installed plugin provides it; "
            f"available: {', '.join(sorted(offered))} (run 'servebench plugins' to list plugins)"
        )
    if name in offered:
        return f"{group}={name}: its plugin has no {group}/{name}.yaml in a folder of servebench_config_paths"
    if (now := RENAMED.get(group, {}).get(name)) is not None:
        return f"{group}={name} is no longer there; {group}={now} takes its place"
    known = listed or offered
    others = [other for other, kinds in registry.kinds.items() if name in kinds]
    hint = f"did you mean {others[0]}={name}? available: {', '.join(known)}" if others else ""
    return f"{group}={name}: no such {group}; {hint or suggest(name, known, listed=True)}"


def missing_plugin(group: str, name: str, registry: Registry) -> str | None:
    """Return the message for an option that a plugin offers; None if no known plugin does."""
    known = DISTRIBUTIONS.get(group, {}).get(name)
    for info in registry.plugins:
        if (group == "engine" and name == info.name) or info.distribution == (known or f"servebench-{name}"):
            if info.status == "broken":
                return f"{group}={name}: its plugin {info.distribution} {info.version} failed to load ({info.error})"
            if info.status == "disabled":
                return f"{group}={name}: its plugin {info.distribution} is disabled by {DISABLE_VARIABLE}; unset it"
    if known is None:
        return None
    others = ", ".join(sorted(registry.kinds[group])) or "none"
    return (
        f"{group}={name} is not installed: {install_command(known)}, or choose another {group} with {group}=NAME "
        f"(installed: {others})"
    )
