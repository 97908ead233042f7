"""Every hook, on one page. A plugin is a module or object with functions of these names marked `@hookimpl`, named by an
entry point of the group `servebench`.

Registration hooks return classes, which configs refer to by their `name`, or `{name: "module:Class"}`, of which only what a
command uses is imported. Life-cycle hooks receive one frozen object. None is called between a point's first request and its
last record.
"""

from collections.abc import Mapping, Sequence

import pluggy

from servebench.contracts.engine import Engine, Launcher
from servebench.contracts.events import Event, PointFinished, RunFinished, RunStarted
from servebench.contracts.quality import Scorer
from servebench.contracts.request import Workload
from servebench.contracts.telemetry import TelemetrySource

GROUP = "servebench"
"""Entry-point group, and pluggy project name."""

API_VERSION = 1
"""Raised when a hook changes so that older plugins must change too. A plugin may set `requires_api`."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def servebench_engines() -> Sequence[type[Engine]] | Mapping[str, str]:
    """Engine classes. Called once, at start. (since 0.1)"""
    return ()


@hookspec
def servebench_launchers() -> Sequence[type[Launcher]] | Mapping[str, str]:
    """Launch strategies. Called once, at start. (since 0.1)"""
    return ()


@hookspec
def servebench_workloads() -> Sequence[type[Workload]] | Mapping[str, str]:
    """Workload classes; each is constructed with its settings (`settings_type`). Called once, at start. (since 0.1)"""
    return ()


@hookspec
def servebench_telemetry() -> Sequence[type[TelemetrySource]] | Mapping[str, str]:
    """Telemetry source classes; each run makes its own instances. Called once, at start. (since 0.1)"""
    return ()


@hookspec
def servebench_scorers() -> Sequence[type[Scorer]] | Mapping[str, str]:
    """Scorer classes, which make questions and grade answers. Called once, at start. (since 0.1)"""
    return ()


@hookspec
def servebench_config_paths() -> Sequence[str]:
    """Folders of Hydra config groups, as absolute paths or `pkg://package.folder`. Called once, at start. (since 0.1)"""
    return ()


@hookspec
def servebench_run_started(event: RunStarted) -> None:
    """Called before the engine is started. (since 0.1)"""


@hookspec
def servebench_point_finished(event: PointFinished) -> None:
    """Called after a point is stored, before the next begins. (since 0.1)"""


@hookspec
def servebench_run_finished(event: RunFinished) -> None:
    """Called after the run's files are written. (since 0.1)"""


LIFE_CYCLE: Mapping[type[Event], str] = {
    RunStarted: "servebench_run_started",
    PointFinished: "servebench_point_finished",
    RunFinished: "servebench_run_finished",
}
"""The hook that is called for each event that has one."""
