"""The class and constants of a tracked run, shared by the sync and the MLflow client."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run in the form in which MLflow keeps one. `metrics` are (name, value, step, milliseconds since the epoch)."""

    name: str
    status: str
    params: dict[str, str]
    tags: dict[str, str]
    metrics: list[tuple[str, float, int, int]]
    artifacts: list[Path] = field(default_factory=list)
    started_ms: int
    ended_ms: int | None


KEY_TAG = "servebench.key"


NOTE_TAG = "mlflow.note.content"
"""Where MLflow keeps the description of a run; Markdown."""


@dataclass(frozen=True, kw_only=True)
class TrackedStudy:
    """What the study's own run shows of its runs; metrics and artifacts as in TrackedRun."""

    tags: dict[str, str] = field(default_factory=dict)
    metrics: list[tuple[str, float, int, int]] = field(default_factory=list)
    artifacts: list[Path] = field(default_factory=list)
