"""What a run knows of how its engine wanders, and what it learns of it from a long point."""

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from servebench.analysis.evidence import PointEvidence
from servebench.analysis.serial import FLAT, WANDER_S, WANDER_SD, learned_prior
from servebench.analysis.statistics import point_wander
from servebench.contracts.events import Notice
from servebench.contracts.noise import LONG_S, LearnedNoise
from servebench.contracts.results import Point
from servebench.load.plan.levels import PlannedPoint
from servebench.measure.points import point_sample
from servebench.run.session import RunSession
from servebench.store.manifest import digest
from servebench.store.noise import read_noise, write_noise
from servebench.util.errors import StoreError
from servebench.util.units import NS_PER_S

MACHINE = ("platform", "cpu_model", "cpu_threads_usable", "gpus")
"""The facts of a machine with which an engine may wander otherwise: with a new kernel or driver it is another one."""


def known_noise(session: RunSession, level: PlannedPoint) -> LearnedNoise | None:
    """Return what an earlier long point has shown of this engine on this machine; None for an open loop, where the output follows
    the arrivals and says little of the engine's speed."""
    found = None if level.open_loop else read_noise(session.request.study.path.parent, _facts(session), time.time())
    return found if found is not None and learned_prior(found.likelihood) is not FLAT else None


def learn_noise(session: RunSession, level: PlannedPoint, point: Point, evidence: PointEvidence) -> None:
    """Store what a valid point of a closed loop shows whose window has LONG_S or more in which nobody else disturbed it.

    What was cut off as its warm-up counts where the rest is shorter: slow wander looks like one. A folder that cannot be written
    is left as it is: later intervals are wider, and no point is lost.
    """
    row, report, load = point.row, evidence.report, session.settings.load
    alone = not level.open_loop and not evidence.facts.slices
    if not alone or row.window_end_ns is None or report.ended_ns - report.started_ns < LONG_S * NS_PER_S:
        return
    events, title = session.request.events, session.request.task.job.title
    sampled = partial(point_sample, evidence.measured, level.concurrency, disturbed=row.left_out)
    sample = sampled(warmup_s=load.warmup_s + (row.warmup_cut_s or 0.0))
    if sample.window_s < LONG_S:
        sample = sampled(warmup_s=load.warmup_s)
    verdict, likelihood, why = point.judged_row.verdict, point_wander(sample), None
    if verdict != "valid":
        why = f"it is {verdict}"
    elif sample.window_s < LONG_S:
        why = f"{sample.window_s:.0f} s of it are undisturbed, {LONG_S:.0f} are needed"
    if why is not None or likelihood is None:
        if (load.duration_s or 0.0) >= LONG_S:
            events(Notice("noise_left", title, why or "too few answers, or unknown tokens"))
        return
    found = LearnedNoise(
        point=f"{session.request.run_id}/{row.point}",
        ended_s=min(row.window_end_ns / NS_PER_S, time.time()),
        window_s=sample.window_s,
        likelihood=[[round(one, 9) for one in sizes] for sizes in likelihood.tolist()],
    )
    with suppress(StoreError):
        write_noise(session.request.study.path.parent, _facts(session), found)
        events(Notice("noise_learned", title))


def _facts(session: RunSession) -> Mapping[str, Any]:
    """Return what has to be the same, the grid on which wander is considered included; the closed loop may be of any size."""
    config, machine = session.request.task.job.resolved, session.request.machine
    launch = config.get("launch") or {}
    return {
        "engine": session.settings.engine.name,
        "engine_version": session.lease.running.version,
        "launch": session.settings.launch.name,
        # where the server is, or how a simulated one behaves
        "launch_settings": digest(launch),
        "gpu": session.settings.gpu.name,
        "gpu_count": session.settings.gpu.count,
        "grid": [list(WANDER_S), list(WANDER_SD)],
        "machine": {name: machine.get(name) for name in MACHINE},
    }
