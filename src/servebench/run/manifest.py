"""Facts of a run for its manifest, besides config and machine."""

from collections.abc import Sequence
from dataclasses import asdict

from servebench.contracts.engine import StartPhase, StopReport
from servebench.contracts.results import RunOutcome
from servebench.engine.pool import EngineLease
from servebench.engine.weights import weights_facts
from servebench.store.state import RunState
from servebench.util.units import NS_PER_S


def starting_facts(state: RunState) -> dict[str, object]:
    """Return the facts of a run that starts now."""
    return {"run_id": state.run_id, "title": state.title, "status": "running", "started_s": state.started_s}


def run_facts(state: RunState, outcome: RunOutcome, *, ended_s: float) -> dict[str, object]:
    """Return the facts of a run that has ended. Times are in seconds since the epoch."""
    return {
        **starting_facts(state),
        "status": outcome.status,
        "error": outcome.error,
        "ended_s": ended_s,
        **({"search": outcome.search} if outcome.search is not None else {}),
        **({"quality": [asdict(one) for one in outcome.quality]} if outcome.quality else {}),
    }


def engine_facts(lease: EngineLease) -> dict[str, object]:
    """Return the facts of the engine: version, weights, endpoint, command, cold start by phase, path of its log in the study."""
    running = lease.running
    command = running.command
    emulated = lease.launcher.emulated
    argv = command.argv if command is not None else None
    return {
        **({} if emulated else {"weights": weights_facts(lease.context.model, argv)}),
        "engine_version": running.version,
        "endpoint": running.base_url,
        "served_model": running.model,
        "image": getattr(running, "image", None),
        "command": {"argv": list(command.argv), "env": dict(command.env)} if command else None,
        "engine_log": f"{lease.owner_log.parent.name}/{lease.owner_log.name}",
        "resolved_settings": lease.resolved,
        "cold_start": cold_start(lease),
        "warm_restart": warm_restart(lease),
    }


def cold_start(lease: EngineLease) -> dict[str, object] | None:
    """Return the phases of the cold start, in seconds from the start of the command; null for an engine already running.

    `shared`: an earlier run of the study started the engine, so its cold start must not be counted twice.
    """
    start = lease.first_start or lease.running
    return _start(start.started_ns, start.phases, lease)


def warm_restart(lease: EngineLease) -> dict[str, object] | None:
    """Return the same for the second start with `engine.measure_restart`, when files and compiled code are cached; else null."""
    return _start(lease.running.started_ns, lease.running.phases, lease) if lease.first_start is not None else None


def _start(started_ns: int, ended: Sequence[StartPhase], lease: EngineLease) -> dict[str, object] | None:
    if not ended:
        return None
    phases = [
        {"name": phase.name, "ended_ns": phase.ended_ns, "seconds": (phase.ended_ns - started_ns) / NS_PER_S}
        for phase in ended
    ]
    return {"started_ns": started_ns, "seconds": phases[-1]["seconds"], "phases": phases, "shared": lease.uses > 0}


def stop_facts(stopped: StopReport) -> dict[str, object]:
    """Return how the engine stopped and what it left behind."""
    facts = asdict(stopped)
    del facts["stopped"]
    return {"stop": facts}
