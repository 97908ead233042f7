"""What may limit an engine, and which of its settings act on that: what an engine states, and the analysis uses."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal


class Limit(StrEnum):
    """What limits an engine at a load level. The last three name no limit that a setting of the engine removes."""

    CLIENT = "client"
    NETWORK = "network"
    FRONT_END = "front_end"
    BEFORE_ENGINE = "network_or_front_end"
    KV_CACHE = "kv_cache"
    RUNNING = "running_limit"
    TOKEN_BUDGET = "token_budget"  # noqa: S105
    QUEUE = "queue"
    COMPUTE = "compute"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    LOAD = "load"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A setting that acts on a limit: its config key, the engine's own flag, which way to go, and what that may cost.

    Without a `key` servebench has no setting for it. A number is multiplied by `factor` (divided, to lower it), from the
    configured value or else from `default`, the engine's own where that is fixed, up to `most`. `value` is what to set.
    """

    key: str = ""
    flag: str = ""
    way: Literal["raise", "lower", "set"] = "raise"
    cost: str
    value: Any = None
    default: float | None = None
    factor: float = 2.0
    most: float | None = None
