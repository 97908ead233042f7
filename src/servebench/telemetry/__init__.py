"""Watches the engine and the machine while load runs."""

from servebench.telemetry.columns import TELEMETRY_COLUMNS, held_requests, telemetry_columns
from servebench.telemetry.watch import Telemetry

__all__ = ["TELEMETRY_COLUMNS", "Telemetry", "held_requests", "telemetry_columns"]
