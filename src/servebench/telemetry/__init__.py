"""Watches the engine and the machine while load runs."""

from servebench.telemetry.columns import TELEMETRY_COLUMNS, telemetry_columns
from servebench.telemetry.watch import Telemetry

__all__ = ["TELEMETRY_COLUMNS", "Telemetry", "telemetry_columns"]
