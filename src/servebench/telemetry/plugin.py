"""The built-in telemetry sources, registered by an entry point as a third party registers its own."""

from collections.abc import Sequence

from servebench.contracts.hooks import hookimpl
from servebench.contracts.telemetry import TelemetrySource


@hookimpl
def servebench_telemetry() -> Sequence[type[TelemetrySource]]:
    """Return the sources of the engine's metrics, its processes, the GPUs, the CPU's energy, and who else uses the machine."""
    from servebench.telemetry.engine_metrics import EngineMetricsSource
    from servebench.telemetry.gpu import GpuSource
    from servebench.telemetry.gpu_amd import AmdGpuSource
    from servebench.telemetry.machine import MachineSource
    from servebench.telemetry.processes import CpuEnergySource, ProcessSource

    return (EngineMetricsSource, ProcessSource, GpuSource, AmdGpuSource, CpuEnergySource, MachineSource)
