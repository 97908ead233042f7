"""Everything that a plugin may import: base classes, the objects that pass between a plugin and servebench, and helpers.

Other packages of servebench may change between minor versions; the names here are kept, or renamed with a major version.
`docs/plugins.md` builds an engine with them step by step; `servebench.contracts.hooks` lists every hook on one page.
"""

from __future__ import annotations

from servebench.contracts.emulation import Emulation, Loading
from servebench.contracts.engine import (
    Command,
    ContainerImage,
    Dialect,
    Engine,
    LaunchContext,
    Launcher,
    LogHint,
    PhaseMarker,
    RunningEngine,
    Say,
    ServerTimings,
    StartPhase,
    StopReport,
)
from servebench.contracts.events import PointFinished, RunFinished, RunStarted
from servebench.contracts.hooks import API_VERSION, hookimpl
from servebench.contracts.limits import Knob, Limit
from servebench.contracts.quality import AnswerStore, Endpoint, Grade, Item, ItemAnswer, Judged, Scorer
from servebench.contracts.request import Message, Request, Tokenizer, Workload
from servebench.contracts.results import Record
from servebench.contracts.settings import (
    CountOrZero,
    EngineSettings,
    Fraction,
    GpuSettings,
    LaunchSettings,
    LengthSettings,
    ModelSettings,
    Port,
    PositiveFloat,
    PositiveInt,
    QualitySettings,
    RunSettings,
    Seconds,
    StrictSettings,
    WorkloadSettings,
)
from servebench.contracts.telemetry import Reading, Subject, TelemetrySource
from servebench.engine.adapters.engine_package import MODEL_NOT_FOUND, engine_hooks, log_hints, read_emulation
from servebench.engine.adapters.flags import (
    SHARED_SETTINGS,
    FlagTable,
    command_output,
    extra_arguments,
    is_python,
    missing_executable,
)
from servebench.engine.adapters.knobs import engine_knobs
from servebench.engine.supervisor.ports import accepts_connections, free_port
from servebench.engine.supervisor.started import GuardedProcess
from servebench.engine.weights import gguf_files
from servebench.protocol.json_values import milliseconds, object_at
from servebench.protocol.kinds.table import kind_named
from servebench.quality.load_answers import answer_of, answered_requests, item_of
from servebench.quality.rows import OpenPromptScorer, RowScorer, read_answers, read_rows, sample
from servebench.util.children import HUB_TOKENS, command_environment, find_program, python_environment
from servebench.util.errors import ConfigError, EngineError, PreflightError, QualityError
from servebench.util.json_schema import TEXT, object_of
from servebench.util.safe_text import in_one_line
from servebench.util.tls import access_problems, tls_context
from servebench.util.wheel_file import NotFetched, PackagedFile, fetch, sha256_of
from servebench.workload.build.fill import fill
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.requests import as_request
from servebench.workload.build.seeding import generator, salt

__all__ = ["Command", "ContainerImage", "Dialect", "Engine", "LaunchContext", "Launcher", "LogHint", "PhaseMarker"]
__all__ += ["RunningEngine", "Say", "ServerTimings", "StartPhase", "StopReport"]
__all__ += ["API_VERSION", "PointFinished", "RunFinished", "RunStarted", "hookimpl"]
__all__ += ["AnswerStore", "Endpoint", "Grade", "Item", "ItemAnswer", "Judged", "Record"]
__all__ += ["OpenPromptScorer", "RowScorer", "Scorer"]
__all__ += ["Emulation", "Knob", "Limit", "Loading"]
__all__ += ["Message", "Request", "Tokenizer", "Workload"]
__all__ += ["CountOrZero", "EngineSettings", "Fraction", "GpuSettings", "LaunchSettings", "LengthSettings"]
__all__ += ["ModelSettings", "Port", "PositiveFloat", "PositiveInt", "QualitySettings", "RunSettings"]
__all__ += ["Seconds", "StrictSettings", "WorkloadSettings"]
__all__ += ["Reading", "Subject", "TelemetrySource"]
__all__ += ["MODEL_NOT_FOUND", "SHARED_SETTINGS", "FlagTable", "GuardedProcess", "accepts_connections"]
__all__ += ["command_environment", "command_output", "engine_hooks", "engine_knobs", "extra_arguments", "find_program"]
__all__ += ["free_port", "is_python", "log_hints", "milliseconds", "missing_executable", "object_at", "read_emulation"]
__all__ += ["TEXT", "answer_of", "answered_requests", "item_of", "object_of", "read_answers", "read_rows", "sample"]
__all__ += [
    "HUB_TOKENS",
    "access_problems",
    "gguf_files",
    "in_one_line",
    "kind_named",
    "python_environment",
    "tls_context",
]
__all__ += ["ConfigError", "EngineError", "PreflightError", "QualityError"]
__all__ += ["NotFetched", "PackagedFile", "fetch", "sha256_of"]
__all__ += ["as_request", "fill", "generator", "salt", "sample_lengths"]
