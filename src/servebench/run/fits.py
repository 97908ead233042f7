"""Whether the hub has a model, GPUs and disk have room for it, and the driver is new enough for an engine, before a start."""

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path

from servebench.analysis.tuning.candidates import memory_figures, memory_problem
from servebench.contracts.engine import Engine, LaunchContext, Launcher
from servebench.contracts.settings import LengthSettings, ModelSettings, RunSettings
from servebench.contracts.weights import weights_gb
from servebench.engine.adapters.flags import is_python
from servebench.util.children import find_program
from servebench.util.errors import ConfigError
from servebench.util.figures import number
from servebench.util.gpus import Gpu, find_gpus

GIGA = 1e9
CONFIG_FILE = "config.json"
HUB_TIMEOUT_S = 3.0
DRIVER_OF_CUDA = {12: 525, 13: 580}
"""The oldest driver of each major version of CUDA: release notes of the CUDA Toolkit, "minor version compatibility"."""
TORCH_CUDA = re.compile(r"^cuda\b.*= '(\d+)\.[\d.]+'", re.MULTILINE)
PACKAGES = ("lib/python3*/*-packages", "local/lib/python3*/*-packages")


def fit_faults(
    settings: RunSettings, engine: Engine, context: LaunchContext, launcher: Launcher, *, here: bool
) -> list[str]:
    """Return why a start of a real engine must fail, one line each, as far as that is known before. Asks the hub for a model that
    is not on this machine; a hub that does not answer says nothing."""
    if not launcher.local or launcher.emulated:
        return []
    model, offloads = settings.model, any("offload" in name for name in settings.engine.extra_args)
    found: list[str | None] = []
    config = asdict(settings)
    if engine.whole_context and settings.engine.max_model_len is None:
        config["engine"]["max_model_len"] = model.context_length
    if engine.needs_gpu and not offloads and (problem := memory_problem(config)) is not None:
        found.append(f"model.name={model.name}: {problem}; set engine.max_model_len, or more GPUs (gpu.count)")
    if here and engine.from_hub and model.path is None:
        found.append(hub_problem(model.name, model.revision) or disk_problem(model, settings))
    if here and engine.needs_gpu and launcher.needs_executable:
        with suppress(ConfigError):
            program = settings.engine.executable or engine.command(context).argv[0]
            found.append(driver_problem(program, find_gpus()))
    return [one for one in found if one is not None]


def memory_note(settings: RunSettings) -> str | None:
    """Return a line if the keys and values of all users at the highest level do not fit beside the weights; None if they do, or
    if too little is known. Pure."""
    lengths = [
        one if not isinstance(one, LengthSettings) else one.mean or ((one.min or 1) + (one.max or 1)) / 2
        for one in (settings.workload.input_tokens, settings.workload.output_tokens)
    ]
    room, weights, token = memory_figures(asdict(settings)) or (0.0, 0.0, None)
    users, each = max(settings.load.concurrency or (0,)), (token or 0.0) * sum(one or 0.0 for one in lengths)
    if None in lengths or weights > room or weights + users * each <= room:
        return None
    return (
        f"the GPUs have {number(room)} GB: {number(weights)} for the weights, and {number(users * each)} for keys and values of "
        f"{users:,} users; from about {int((room - weights) / each):,} users on requests wait in the engine"
    )


@cache
def hub_problem(name: str, revision: str | None) -> str | None:
    """Return why an engine cannot fetch a model from the hub; None if it can, if it is on this machine, or if the hub does not
    answer."""
    # imports a web client
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    key = f"model.name={name}"
    with suppress(Exception):  # whatever a hub answers that is none of these, the engine will see
        if Path(name).exists() or isinstance(try_to_load_from_cache(name, CONFIG_FILE, revision=revision), str):
            return None
        url = hf_hub_url(name, CONFIG_FILE, revision=revision, endpoint=os.environ.get("HF_ENDPOINT"))
        try:
            get_hf_file_metadata(url, timeout=HUB_TIMEOUT_S)
        except GatedRepoError:
            return f"{key} is gated: accept its licence at https://huggingface.co/{name}, and set HF_TOKEN or run 'hf auth login'"
        except RevisionNotFoundError:
            return f"model.revision={revision}: {name} has no such revision on the Hugging Face hub"
        except RepositoryNotFoundError:
            return (
                f"{key}: the Hugging Face hub has no such model, or it is private; check the name, or set HF_TOKEN "
                "(model.path= is a local folder)"
            )
    return None


def disk_problem(model: ModelSettings, settings: RunSettings) -> str | None:
    """Return why the download of a model does not fit on the disk of the hub's cache; None if it does or is there already."""
    from huggingface_hub import constants

    weights = weights_gb(asdict(model), asdict(settings.engine))
    cache_dir = Path(constants.HF_HUB_CACHE)
    if not weights or (cache_dir / f"models--{model.name.replace('/', '--')}").is_dir():
        return None
    free = shutil.disk_usage(next(one for one in (cache_dir, *cache_dir.parents) if one.is_dir())).free / GIGA
    if weights <= free:
        return None
    room = f"{cache_dir}, which has {number(free)} GB"
    return f"model.name={model.name}: its {number(weights)} GB do not fit into {room}; set HF_HOME"


def driver_problem(program: str, gpus: Sequence[Gpu]) -> str | None:
    """Return why a program cannot use these GPUs: its torch is built for a newer CUDA than their driver has; None if it can, or
    if that is unknown. Libraries of CUDA's forward compatibility replace those of the driver."""
    driver = next((gpu.driver for gpu in gpus if gpu.driver), None)
    cuda = torch_cuda(program)
    least = DRIVER_OF_CUDA.get(cuda or 0)
    if driver is None or least is None or "compat" in os.environ.get("LD_LIBRARY_PATH", ""):
        return None
    if not driver.partition(".")[0].isdecimal() or int(driver.partition(".")[0]) >= least:
        return None
    return (
        f"{program} has a torch for CUDA {cuda}, which needs driver {least} or newer, but this machine has {driver}; update the "
        "driver, or install a build for an older CUDA"
    )


def torch_cuda(program: str) -> int | None:
    """Return the major version of CUDA for which the torch of a Python program is built; null if that cannot be seen."""
    path = find_program(program)
    if path is None:
        return None
    with suppress(OSError, UnicodeDecodeError):
        if not is_python(path):
            with Path(path).open("rb") as text:
                path = text.readline(1000).decode().removeprefix("#!").strip()
        if Path(path).is_absolute() and is_python(path):
            root = Path(path).parent.parent
            for file in (one for place in PACKAGES for one in root.glob(f"{place}/torch/version.py")):
                found = TORCH_CUDA.search(file.read_text())
                return int(found[1]) if found else None
    return None
