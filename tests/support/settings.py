"""Settings with defaults for tests that need a whole set of them."""

from typing import Any

from servebench.contracts.settings import (
    EngineSettings,
    GpuSettings,
    LaunchSettings,
    LoadSettings,
    ModelSettings,
    QualitySettings,
    RunSettings,
    SloSettings,
    StudySettings,
    TelemetrySettings,
    TrackingSettings,
)
from servebench.workload.unique import UniqueSettings


def run_settings(**changes: Any) -> RunSettings:
    """Return the settings of a run; `changes` replace whole groups (`engine=`, `load=`, ...)."""
    groups: dict[str, Any] = {
        "engine": EngineSettings(name="vllm"),
        "launch": LaunchSettings(name="process"),
        "model": ModelSettings(name="m"),
        "gpu": GpuSettings(name="none"),
        "workload": UniqueSettings(name="unique"),
        "load": LoadSettings(name="baseline", concurrency=(4,)),
        "quality": QualitySettings(name="none"),
        "slo": SloSettings(),
        "telemetry": TelemetrySettings(),
        "tracking": TrackingSettings(),
        "study": StudySettings(),
    }
    return RunSettings(**(groups | changes))
