"""The built-in telemetry sources, registered by an entry point as a third party registers its own."""

from collections.abc import Mapping

from servebench.contracts.hooks import hookimpl


@hookimpl
def servebench_telemetry() -> Mapping[str, str]:
    """Return the sources of the engine's metrics, its processes, the GPUs, the CPU's energy, and who else uses the machine."""
    return {
        "engine": "servebench.telemetry.engine_metrics:EngineMetricsSource",
        "process": "servebench.telemetry.processes:ProcessSource",
        "gpu": "servebench.telemetry.gpu:GpuSource",
        "amd_gpu": "servebench.telemetry.gpu:AmdGpuSource",
        "rapl": "servebench.telemetry.processes:CpuEnergySource",
        "machine": "servebench.telemetry.machine:MachineSource",
    }
