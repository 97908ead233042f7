"""Watch the engine and the machine while the load runs."""

from servebench.telemetry.columns import held_requests, telemetry_columns
from servebench.telemetry.sampler import Telemetry

__all__ = ["Telemetry", "held_requests", "telemetry_columns"]
