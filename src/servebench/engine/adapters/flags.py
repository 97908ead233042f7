"""Translate the shared engine settings into an engine's own command-line flags; a setting without a flag is an error."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servebench.contracts.engine import Command, LaunchContext
from servebench.contracts.settings import EngineSettings
from servebench.util.children import command_environment, find_program, without_proxy

SHARED_SETTINGS = (
    *("tensor_parallel_size", "max_model_len", "dtype", "quantization", "gpu_memory_fraction", "max_num_seqs"),
    *("prefix_caching", "seed"),
)
"""The settings that every engine must translate or reject. The others (host, port, timeouts ...) launchers handle."""


@dataclass(frozen=True, kw_only=True)
class FlagTable:
    """How an engine spells the shared settings. `flags` maps a setting to its flag; `switches` maps a boolean setting to the
    arguments for true and for false. Any other shared setting is unsupported; `unsupported_reasons` explains why.

    Flags with `several_values` take a whole list at once (argparse's nargs): only the last of repeated ones would count."""

    flags: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)
    unsupported_reasons: Mapping[str, str] = field(default_factory=dict)
    several_values: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a key that is not a shared setting: its flag would never be written."""
        named = {*self.flags, *self.switches, *self.unsupported_reasons}
        if strange := sorted(named - set(SHARED_SETTINGS)):
            raise ValueError(
                f"FlagTable: {', '.join(strange)}: not a shared setting; these are {', '.join(SHARED_SETTINGS)}"
            )

    def arguments(self, settings: EngineSettings) -> list[str]:
        """Return the arguments for the shared settings that are set, in the order of `SHARED_SETTINGS`."""
        arguments: list[str] = []
        for name in SHARED_SETTINGS:
            value = getattr(settings, name)
            if value is None:
                continue
            if name in self.switches:
                arguments += self.switches[name][0 if value else 1]
            elif name in self.flags:
                arguments += [self.flags[name], str(value)]
        return arguments

    def command(self, settings: EngineSettings, *arguments: str, env: Mapping[str, str] | None = None) -> Command:
        """Return the command of these arguments, the shared settings and `extra_args`. `engine.env` overrides `env`."""
        return Command(
            argv=(*arguments, *self.arguments(settings), *extra_arguments(settings.extra_args, self.several_values)),
            env={**(env or {}), **settings.env},
        )

    def unsupported(self, settings: EngineSettings) -> list[str]:
        """Return one line for each shared setting that is set but has no flag, or whose flag `extra_args` gives once more. A
        tensor_parallel_size of 1 needs none."""
        return self._given_twice(settings) + [
            f"engine.{name}={getattr(settings, name)}: {settings.name} has no flag for it; "
            f"{self.unsupported_reasons.get(name, 'leave it out')}"
            for name in SHARED_SETTINGS
            if getattr(settings, name) is not None
            and name not in self.flags
            and name not in self.switches
            and not (name == "tensor_parallel_size" and settings.tensor_parallel_size == 1)
        ]

    def _given_twice(self, settings: EngineSettings) -> list[str]:
        """Return one line for each flag in `extra_args` that a shared setting gives too: the engine would take one of the two."""
        extra = {flag_name(name): name for name in settings.extra_args}
        flags = {name: [flag] for name, flag in self.flags.items()}
        flags |= {name: [flag for some in pair for flag in some] for name, pair in self.switches.items()}
        return [
            f"engine.extra_args.{extra[flag_name(flag)]}: engine.{name}={getattr(settings, name)} sets {flag}, too; leave one out"
            for name in SHARED_SETTINGS
            if getattr(settings, name) is not None
            for flag in flags.get(name, ())
            if flag_name(flag) in extra
        ]


def flag_name(flag: str) -> str:
    """Return a flag as it is compared: without its dashes, and with dashes for underscores."""
    return flag.lstrip("-").replace("_", "-")


def extra_arguments(extra: Mapping[str, Any], several_values: bool = False) -> list[str]:
    """Return `extra_args` as arguments: true gives a bare flag, null and false omit it, a list repeats it or, with
    `several_values`, is written after one flag; a mapping is written as JSON."""
    arguments: list[str] = []
    for name, setting in extra.items():
        flag = name if name.startswith("-") else f"--{name}"
        listed = setting if isinstance(setting, (list, tuple)) else [setting]
        values = [[] if one is True else [_argument(one)] for one in listed if one is not None and one is not False]
        if several_values and values:
            values = [[word for own in values for word in own]]
        arguments += [word for own in values for word in (flag, *own)]
    return arguments


def _argument(value: object) -> str:
    return json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)


SPANS_DELAY_MS = 1000
"""How often a traced engine sends its spans, which are waited for after the load."""


def spans_environment(context: LaunchContext) -> dict[str, str]:
    """Return the variables of OpenTelemetry's SDK with which an engine sends its spans to `context.spans_endpoint` over HTTP, and
    not to a proxy: its exporters obey HTTP_PROXY, for 127.0.0.1 too.

    https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
    """
    if context.spans_endpoint is None:
        return {}
    delay = {"OTEL_BSP_SCHEDULE_DELAY": str(SPANS_DELAY_MS)}
    direct = without_proxy(urlsplit(context.spans_endpoint).hostname or "", context.engine.env)
    return {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", **delay, **direct}


def is_python(executable: str) -> bool:
    """Return whether an executable is a Python interpreter, which then runs the engine as a module."""
    return Path(executable).name.startswith("python")


def command_output(command: Sequence[str], timeout_s: float = 10.0) -> str:
    """Return what a short command prints, standard output before standard error; empty if it fails or does not exist."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=True, env=command_environment(command)
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() or done.stderr.strip()


def missing_executable(settings: EngineSettings, default: str, install: str) -> list[str]:
    """Return an error line if the engine's executable is not installed: what was looked for and what to do."""
    wanted = settings.executable or default
    if find_program(wanted):
        return []
    source = f"engine.executable={wanted} does not exist" if settings.executable else f"'{wanted}' is not on PATH"
    return [
        f"{settings.name} is not installed: {source}; {install}, or set engine.executable=/path/to/{default}, "
        "measure a running server with endpoint=URL, or see it imitated with launch=emulated"
    ]
