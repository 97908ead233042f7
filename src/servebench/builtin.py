"""The built-in engines, launchers, workloads and scorers, offered through the same hooks as a plugin's."""

from __future__ import annotations

from collections.abc import Sequence

from servebench.contracts.engine import Engine, Launcher
from servebench.contracts.hooks import hookimpl
from servebench.contracts.quality import Scorer
from servebench.contracts.request import Workload
from servebench.contracts.telemetry import TelemetrySource


@hookimpl
def servebench_engines() -> Sequence[type[Engine]]:
    """The OpenAI-compatible endpoint, and the engines of the field."""
    from servebench.engine.adapters.openai import OpenAiEngine
    from servebench.engine.adapters.sglang import SglangEngine
    from servebench.engine.adapters.trtllm import TrtllmEngine
    from servebench.engine.adapters.vllm import VllmEngine

    return (VllmEngine, SglangEngine, TrtllmEngine, OpenAiEngine)


@hookimpl
def servebench_launchers() -> Sequence[type[Launcher]]:
    """A process of our own, a container, an endpoint that somebody else runs, or an emulated engine."""
    from servebench.engine.launchers.attach import AttachLauncher
    from servebench.engine.launchers.docker import DockerLauncher
    from servebench.engine.launchers.emulated import EmulatedLauncher
    from servebench.engine.launchers.process import ProcessLauncher

    return (ProcessLauncher, DockerLauncher, AttachLauncher, EmulatedLauncher)


@hookimpl
def servebench_workloads() -> Sequence[type[Workload]]:
    """What servebench can ask of an engine."""
    from servebench.workload.agent_loop import AgentLoopWorkload
    from servebench.workload.long_context import LongContextWorkload
    from servebench.workload.mix import MixWorkload
    from servebench.workload.multi_turn import MultiTurnWorkload
    from servebench.workload.rag_prefix import RagPrefixWorkload
    from servebench.workload.sharegpt import ShareGptWorkload
    from servebench.workload.structured_json import StructuredJsonWorkload
    from servebench.workload.summarization import SummarizationWorkload
    from servebench.workload.trace import TraceWorkload
    from servebench.workload.unique import UniqueWorkload

    return (
        ShareGptWorkload,
        UniqueWorkload,
        RagPrefixWorkload,
        StructuredJsonWorkload,
        LongContextWorkload,
        SummarizationWorkload,
        TraceWorkload,
        MultiTurnWorkload,
        AgentLoopWorkload,
        MixWorkload,
    )


@hookimpl
def servebench_scorers() -> Sequence[type[Scorer]]:
    """What servebench can grade."""
    from servebench.quality.gsm8k import Gsm8kScorer
    from servebench.quality.humaneval import HumanEvalScorer
    from servebench.quality.judge import JudgeScorer
    from servebench.quality.lm_eval import LmEvalScorer
    from servebench.quality.mmlu import MmluScorer
    from servebench.quality.parity import ParityScorer
    from servebench.quality.rouge import RougeScorer
    from servebench.quality.structured import JsonScorer

    return (MmluScorer, Gsm8kScorer, HumanEvalScorer, JsonScorer, RougeScorer, JudgeScorer, ParityScorer, LmEvalScorer)


@hookimpl
def servebench_telemetry() -> Sequence[type[TelemetrySource]]:
    """The engine's metrics, its processes, the GPUs, and the CPU's energy."""
    from servebench.telemetry.engine_metrics import EngineMetricsSource
    from servebench.telemetry.gpu import GpuSource
    from servebench.telemetry.gpu_amd import AmdGpuSource
    from servebench.telemetry.processes import CpuEnergySource, ProcessSource

    return (EngineMetricsSource, ProcessSource, GpuSource, AmdGpuSource, CpuEnergySource)
