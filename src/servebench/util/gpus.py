"""The GPUs of this machine that a process may use: as NVML or `nvidia-smi` lists them, else `rocm-smi`."""

import contextlib
import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from servebench.util.children import find_program, program_output

MEBIBYTE = 1 << 20
SMI_FIELDS = ("index", "name", "uuid", "memory.total", "driver_version", "mig.mode.current")
LISTED = re.compile(r"GPU (\d+): |\s+MIG (\S+?\.(\d+)gb\S*)\s.*UUID: ([^)]+)")
"""A line of `nvidia-smi -L`: a GPU, or below it a MIG slice with its profile, memory in GiB and UUID."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, or a MIG slice of one, as its driver describes it. Null: it does not say."""

    index: int
    name: str
    uuid: str = ""
    memory_bytes: int | None = None
    driver: str | None = None
    is_slice: bool = False


@cache
def find_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that a child of this process may use, in the driver's order. Of a GPU that is divided by MIG they are its
    slices. Empty without a driver; never raises. Asked once for each process."""
    # to import NVML's bindings takes 0.15 s
    there = find_program("nvidia-smi") or Path("/dev/nvidiactl").exists()
    if there and (found := _nvml() or _nvidia_smi()):
        return tuple(visible(found, os.environ.get("CUDA_VISIBLE_DEVICES")))
    return tuple(visible(_rocm_smi(), os.environ.get("HIP_VISIBLE_DEVICES")))


def visible(gpus: Sequence[Gpu], named: str | None) -> Iterator[Gpu]:
    """Yield the GPUs that such a variable names, up to the first that is unknown, as CUDA does; all if it is not set. Pure."""
    if named is None:
        yield from gpus
        return
    for name in map(str.strip, named.split(",")):
        alike = (gpu for gpu in gpus if (str(gpu.index) == name if name.isdecimal() else gpu.uuid.startswith(name)))
        found = next(alike, None) if name else None
        if found is None:
            return
        yield found


def _nvml() -> list[Gpu]:
    """Return the GPUs; none if one is divided: `nvidia-smi` names its slices."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - a broken driver is none
        return []
    try:
        driver, found = str(nvml.nvmlSystemGetDriverVersion()), []
        for index in range(nvml.nvmlDeviceGetCount()):
            one = nvml.nvmlDeviceGetHandleByIndex(index)
            with contextlib.suppress(nvml.NVMLError):  # most have no such mode
                if nvml.nvmlDeviceGetMigMode(one)[0]:
                    return []
            name, uuid = (str(ask(one)) for ask in (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetUUID))
            size = int(nvml.nvmlDeviceGetMemoryInfo(one).total)
            found.append(Gpu(index=index, name=name, uuid=uuid, memory_bytes=size, driver=driver))
        return found
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def smi_rows(fields: Sequence[str]) -> list[list[str]]:
    """Return these fields of each GPU as `nvidia-smi` prints them; what it does not know begins with `[`."""
    text = program_output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits") or ""
    return [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) == len(fields)]


def _nvidia_smi() -> list[Gpu]:
    rows = smi_rows(SMI_FIELDS)
    divided = any(row[-1] == "Enabled" for row in rows)
    slices = mig_slices(program_output("nvidia-smi", "-L") or "") if divided else {}
    found: list[Gpu] = []
    for index, name, uuid, memory, driver, _ in rows:
        size = int(memory) * MEBIBYTE if memory.isdecimal() else None
        gpu = Gpu(index=int(index), name=name, uuid=uuid, memory_bytes=size, driver=driver)
        found += [
            replace(gpu, name=f"{name} MIG {profile}", uuid=own, memory_bytes=int(size) << 30, is_slice=True)
            for profile, size, own in slices.get(index, ())
        ] or [gpu]
    return found


def mig_slices(listed: str) -> dict[str, list[tuple[str, str, str]]]:
    """Return profile, memory in GiB (rounded) and UUID of each MIG slice that `nvidia-smi -L` lists, by its GPU's index. Pure."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    own: list[tuple[str, str, str]] = []
    for line in filter(None, map(LISTED.match, listed.splitlines())):
        if line[1]:
            own = found.setdefault(line[1], [])
        else:
            own.append((line[2], line[3], line[4]))
    return found


def _rocm_smi() -> list[Gpu]:
    text = program_output("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
    try:
        cards = json.loads((text or "")[(text or "").find("{") :])
        driver = cards.get("system", {}).get("Driver version")
        # warnings may stand before it; "series" was not always capitalized
        return [
            Gpu(
                index=int(card.removeprefix("card")),
                name=str(said.get("Card Series", said.get("Card series", "AMD GPU"))),
                memory_bytes=int(said["VRAM Total Memory (B)"]) if "VRAM Total Memory (B)" in said else None,
                driver=driver,
            )
            for card, said in cards.items()
            if re.fullmatch(r"card\d+", card)
        ]
    except (ValueError, AttributeError, TypeError):
        return []
