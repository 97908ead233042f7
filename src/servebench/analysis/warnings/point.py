"""The warnings of one point: every check in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from servebench.analysis.evidence import PointEvidence
from servebench.analysis.warnings import catalog, disturbed, failures, load, steadiness, timings, tokens
from servebench.contracts.results import Doubt
from servebench.contracts.settings import RunSettings

CHECKS: tuple[Callable[[PointEvidence], Doubt | None], ...] = (
    load.level_not_reached,
    load.lock_step,
    load.too_few_requests,
    load.too_short,
    disturbed.machine_busy,
    disturbed.machine_shared,
    steadiness.not_stationary,
    load.imprecise,
    load.not_precise,
    failures.errors,
    failures.rate_limited,
    failures.stopped,
    load.client_bound,
    load.clock_stepped,
    tokens.tokens_disagree,
    tokens.hidden_tokens,
    tokens.short_answers,
    tokens.cache_contaminated,
    tokens.hit_rate_missed,
    tokens.prompt_size_approximate,
    tokens.merged_events,
    tokens.not_streamed,
    timings.timings_do_not_add_up,
    failures.cancelled_not_freed,
    failures.emulated,
)


def point_warnings(point: PointEvidence) -> tuple[Doubt, ...]:
    """Return all warnings of a point in the order of CHECKS. Pure."""
    found = (check(point) for check in CHECKS)
    return tuple(doubt for doubt in found if doubt is not None)


def wrong_gpu(settings: RunSettings, gpus: Sequence[str]) -> Doubt | None:
    """Warn when this machine's driver reports other or fewer GPUs than configured; `gpus` are the driver's names.

    Only for an engine on this machine. With `gpu=none` nothing is claimed.
    """
    configured = settings.gpu
    if configured.name == "none" or not configured.count:
        return None
    plain = [_plain(name) for name in gpus]
    matching = sum(_plain(configured.name.partition("-mig-")[0]) in name for name in plain)
    if matching >= configured.count:
        return None
    return catalog.WRONG_GPU.issue(
        f"the config says {configured.count} x {configured.name}, but the driver reports {', '.join(gpus) or 'no GPU'}"
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
