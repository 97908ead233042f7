"""What a manifest tells of a run beside its config and its machine: plain data, without I/O."""

from __future__ import annotations

from typing import Any

from servebench.contracts.engine import StopReport
from servebench.contracts.results import RunOutcome
from servebench.keeper import Lease
from servebench.store import RunState
from servebench.units import NS_PER_S


def starting_facts(state: RunState) -> dict[str, Any]:
    """Who the run is, while it runs."""
    return {"run_id": state.run_id, "title": state.title, "status": "running", "started_s": state.started_s}


def run_facts(state: RunState, outcome: RunOutcome, *, ended_s: float) -> dict[str, Any]:
    """Who the run is and how it ended. Times in seconds since the epoch."""
    return {
        "run_id": state.run_id,
        "title": state.title,
        "status": outcome.status,
        "error": outcome.error,
        "started_s": state.started_s,
        "ended_s": ended_s,
        **({"search": outcome.search} if outcome.search is not None else {}),
    }


def engine_facts(lease: Lease) -> dict[str, Any]:
    """The engine as it ran: version, endpoint, exact command, cold start by phase, and where in the study its log is."""
    running = lease.running
    command = running.command
    return {
        "engine_version": running.version,
        "endpoint": running.base_url,
        "served_model": running.model,
        "command": {"argv": list(command.argv), "env": dict(command.env)} if command else None,
        "engine_log": f"{lease.owner_log.parent.name}/{lease.owner_log.name}",
        "cold_start": cold_start(lease),
    }


def cold_start(lease: Lease) -> dict[str, Any] | None:
    """When each phase was over, in seconds from the start of the command; None for an engine that we did not start.

    `shared` says that an earlier run of the study started it, so that a cold start is not counted twice.
    """
    running = lease.running
    if not running.phases:
        return None
    phases = [
        {"name": phase.name, "ended_ns": phase.ended_ns, "seconds": (phase.ended_ns - running.started_ns) / NS_PER_S}
        for phase in running.phases
    ]
    return {
        "started_ns": running.started_ns,
        "seconds": phases[-1]["seconds"],
        "phases": phases,
        "shared": lease.uses > 0,
    }


def stop_facts(stopped: StopReport) -> dict[str, Any]:
    """How the engine stopped and what it left."""
    return {
        "stop": {
            "forced": stopped.forced,
            "seconds": stopped.seconds,
            "killed_pids": list(stopped.killed_pids),
            "leftover": list(stopped.leftover),
        }
    }
