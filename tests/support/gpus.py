"""What drivers of real machines said of their GPUs, and a machine that says it again.

`-L` of 8 x H100 and of the A100 in slices, the RTX pair, the 1660 and GB10, the 7900 XT and MI250 are outputs that people
published (issues and docs of Red Hat, Datadog, marimo, TorchServe and others); rows of `--query-gpu` that were published
without a UUID or a driver have those of `-L` and of the same machine's header.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servebench.util.gpus import find_gpus

H100_UUIDS = (
    *("GPU-c7a0294c-c2c2-5476-438c-fb468eaa223b", "GPU-27196ced-a067-4406-2159-46448710fc9c"),
    *("GPU-0d9ce0d5-22a0-fdf7-c891-f26e86f907b6", "GPU-7353c83a-0617-7238-ca5a-9b9c80212c46"),
    *("GPU-b71a1811-5b24-ae65-9a8f-4118c7c1db31", "GPU-4a360bd8-44cd-43cb-9dc8-1b47ce52e162"),
    *("GPU-590d9f08-faf1-6a7d-70a1-b15156fd95aa", "GPU-5534d557-2a95-300a-81e6-7b626d87378a"),
)


@dataclass(frozen=True)
class Smi:
    """What `nvidia-smi` printed: the rows of index, name, uuid, memory.total, driver_version and mig.mode.current, and `-L`."""

    rows: str
    listed: str = ""


H100X8 = Smi(
    "\n".join(f"{at}, NVIDIA H100 80GB HBM3, {uuid}, 81559, 580.126.09, Disabled" for at, uuid in enumerate(H100_UUIDS))
)
PAIR = Smi(
    "0, NVIDIA RTX A5000, GPU-30667114-4567-bc4a-029b-3375d117048e, 24564, 610.57.04, [N/A]\n"
    "1, NVIDIA RTX 4500 Ada Generation, GPU-fbe2dd5d-3644-5c37-3179-8ad50079b7d4, 24570, 610.57.04, [N/A]"
)
SINGLE = Smi("0, NVIDIA GeForce GTX 1660 SUPER, GPU-43b14c17-b685-e8ad-ab90-abc0d70fca06, 6144, 591.86, [N/A]")
UNIFIED = Smi("0, NVIDIA GB10, GPU-d991dc71-7825-0bf8-3339-cb2e7ead6a32, [N/A], 595.71.05, [N/A]")
"""It has no memory of its own."""
SLICES = Smi(
    "0, NVIDIA A100-SXM4-80GB, GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16, 81920, 535.216.01, Enabled",
    "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16)\n"
    "  MIG 1g.10gb     Device  0: (UUID: MIG-feb88891-0321-5fef-9c87-d4af3b54259e)\n"
    "  MIG 1g.10gb     Device  1: (UUID: MIG-a25704ba-3a06-5299-a795-fd7cf4d13973)\n"
    "  MIG 1g.10gb     Device  2: (UUID: MIG-50f1c4c9-1508-5e8d-bb06-d08145b22e01)",
)
RADEON = """{
  "card0": {"GPU use (%)": "0", "VRAM Total Memory (B)": "21458059264", "VRAM Total Used Memory (B)": "27856896",
    "Card Series": "Radeon RX 7900 XT", "Card Model": "0x744c", "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
    "Card SKU": "D70401XT", "Subsystem ID": "0x471e", "Device Rev": "0xcc", "Node ID": "1", "GUID": "26967",
    "GFX Version": "gfx1100"}
}"""
MI250X2 = """WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"VRAM Total Memory (B)": "68702699520", "Card Series": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "Node ID": "4"},
 "card1": {"VRAM Total Memory (B)": "68702699520", "Card Series": "AMD INSTINCT MI250 (MCM) OAM AC MBA", "Node ID": "5"},
 "system": {"Driver version": "6.14.14"}}"""


def with_programs(monkeypatch: pytest.MonkeyPatch, folder: Path, programs: Mapping[str, str]) -> None:
    """Let this process find only these programs of a driver, each a shell script, besides those of the system."""
    folder.mkdir(exist_ok=True)
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    find_gpus.cache_clear()


def with_smi(monkeypatch: pytest.MonkeyPatch, folder: Path, smi: Smi) -> None:
    """Let this process be on a machine whose `nvidia-smi` prints that."""
    script = f"case \"$1\" in\n--query-gpu=*) cat <<'E'\n{smi.rows}\nE\n;;\n-L) cat <<'E'\n{smi.listed}\nE\n;;\nesac"
    with_programs(monkeypatch, folder, {"nvidia-smi": script})


class NvmlError(Exception):
    """What NVML raises."""


def nvml(smi: Smi) -> Any:
    """Return a `pynvml` that replies what `nvidia-smi` printed: both ask the same library. NVML knows all memory in bytes."""
    rows = [row.split(", ") for row in smi.rows.splitlines()]

    def mode(at: int) -> tuple[int, int]:
        if rows[at][5] == "[N/A]":
            raise NvmlError("Not Supported")
        return (1, 1) if rows[at][5] == "Enabled" else (0, 0)

    return SimpleNamespace(
        NVMLError=NvmlError, nvmlInit=bool, nvmlShutdown=bool, nvmlSystemGetDriverVersion=lambda: rows[0][4],
        nvmlDeviceGetCount=lambda: len(rows), nvmlDeviceGetHandleByIndex=lambda at: at, nvmlDeviceGetMigMode=mode,
        nvmlDeviceGetName=lambda at: rows[at][1], nvmlDeviceGetUUID=lambda at: rows[at][2],
        nvmlDeviceGetMemoryInfo=lambda at: SimpleNamespace(total=int(rows[at][3]) << 20),
    )  # fmt: skip
