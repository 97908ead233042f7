"""What a config leaves to the machine (`auto`): the overrides that take its place where an engine runs on a GPU, and prices."""

import os
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from annotated_types import Ge
from omegaconf import DictConfig, OmegaConf

from servebench.config.strict import parse_strict, read_yaml
from servebench.contracts.weights import weights_gb
from servebench.registry.registry import Registry
from servebench.util.gpus import Gpu

AUTO = "auto"
"""The option of a config group that leaves the choice to the machine."""
NO_GPU = "none"
ON_GPU = {"model": "qwen2.5-1.5b-instruct", "workload": "medium", "load": "climb"}
"""What `auto` means for an engine on a GPU. Elsewhere its file says that."""
SHEETS = {"h100-80gb-hbm3": "h100", "a100-sxm4-80gb": "a100", "rtx-4090": "rtx4090", "rtx-5090": "rtx5090"}
"""The data sheets of GPUs whose drivers call them otherwise. Other models of a series, such as "H100 PCIe", have other rates."""
MAKERS = re.compile(r"\b(nvidia|amd|geforce|instinct|radeon|tesla)\b")
WEIGHTS_SHARE = 0.7
"""The share of the GPUs' memory that weights may take: the rest is for keys and values, activations and compiled graphs."""
LOCAL_CLUSTERS = ("basic", "submitit_local")


def machine_words(config: DictConfig, keys: Container[str], options: Sequence[str], gpus: Sequence[Gpu]) -> list[str]:
    """Return the overrides that take the place of what this config leaves to the machine, which has these GPUs; none where the
    engine does not run on a GPU. `keys` are those that the user sets, `options` the names of data sheets. Pure."""
    choices = config.hydra.runtime.choices
    words = []
    if choices.get("gpu") == AUTO:
        if not gpus or choices.get("hydra/launcher") not in LOCAL_CLUSTERS:
            return []
        words = gpu_words(gpus, config, options)
    elif choices.get("gpu") == NO_GPU:
        return []
    return words + on_gpu_words(config, keys)


def on_gpu_words(config: DictConfig, keys: Container[str]) -> list[str]:
    """Return the overrides of what an engine on a GPU runs where this config leaves it to the machine. Pure."""
    # levels that the user names are all measured
    own = {"load"} if "load.concurrency" in keys or "load.rate" in keys else set()
    choices = config.hydra.runtime.choices
    return [f"{group}={option}" for group, option in ON_GPU.items() if choices.get(group) == AUTO and group not in own]


def runs_here(config: DictConfig, registry: Registry) -> bool:
    """Return whether a real engine that needs a GPU is started by servebench."""
    engine, launch = (
        registry.kinds[kind].get(str(OmegaConf.select(config, f"{kind}.name"))) for kind in ("engine", "launch")
    )
    return bool(engine and launch and engine.needs_gpu and launch.local and not launch.emulated)


def gpu_words(gpus: Sequence[Gpu], config: DictConfig, options: Sequence[str]) -> list[str]:
    """Return the overrides of the group `gpu` for GPUs of the first one's kind: its data sheet, or what the driver says of it,
    and how many a run uses. Pure."""
    first, alike = gpus[0], [one for one in gpus if one.name == gpus[0].name]
    name = gpu_name(first.name)
    sheet = SHEETS.get(name, name)
    memory_gb = None if first.memory_bytes is None else round(first.memory_bytes / 1e9, 1)
    words = [f"gpu={sheet}"] if sheet in options else [f"++gpu.name={name}", f"++gpu.memory_gb={memory_gb or 'null'}"]
    # a process sees one slice
    count = 1 if first.is_slice else gpus_needed(config, memory_gb, len(alike))
    return words if config.gpu.count else [*words, f"++gpu.count={count}"]


def gpu_name(name: str) -> str:
    """Return a driver's name of a GPU as a short word: `l40s` for "NVIDIA L40S". Pure."""
    return re.sub(r"[^a-z0-9.]+", "-", MAKERS.sub("", name.lower()).partition("(")[0]).strip("-")


def gpus_needed(config: DictConfig, memory_gb: float | None, most: int) -> int:
    """Return the least power of two of GPUs whose memory leaves room beside the weights, at most `most`; 1 for a model of unknown
    size. Pure."""
    if parallel := config.engine.get("tensor_parallel_size"):
        return int(parallel)
    weights = weights_gb(*(cast("dict[str, Any]", OmegaConf.to_container(config[key])) for key in ("model", "engine")))
    count = 1
    while memory_gb and weights and weights > WEIGHTS_SHARE * memory_gb * count and 2 * count <= most:
        count *= 2
    return count


def price_words(config: DictConfig, prices: Mapping[str, float]) -> list[str]:
    """Return the override of the price of a config's GPU where that is known and the config has none. Pure."""
    name, count, price = (OmegaConf.select(config, f"gpu.{key}") for key in ("name", "count", "price_usd_per_hour"))
    known = prices.get(str(name)) if count and price is None else None
    return [] if known is None else [f"++gpu.price_usd_per_hour={known}"]


def read_prices() -> Mapping[str, float]:
    """Return the user's prices of GPUs in USD an hour, by name, of `~/.config/servebench/prices.yaml`; empty without such a file.
    Raises ConfigError with all that is wrong in it."""
    path = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "servebench" / "prices.yaml"
    if not path.is_file():
        return {}
    return parse_strict(dict[str, Annotated[float, Ge(0)]], read_yaml(path), str(path))
