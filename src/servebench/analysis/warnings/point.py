"""The warnings of one point: every check in order."""

import re
from collections.abc import Callable, Sequence

from servebench.analysis.evidence import PointEvidence
from servebench.analysis.warnings import catalog, disturbed, failures, load, tokens
from servebench.contracts.results import Doubt, Record
from servebench.contracts.settings import RunSettings
from servebench.util.figures import short_percent
from servebench.util.units import NS_PER_MS

RESIDUAL_SHARE_MAX = 0.05
"""The share of the time, of a request and of all together, that may be outside of the engine's times: network, front end,
delivery."""
OFF_SHARE_MAX, OFF_MIN = 0.01, 3
"""The share of requests in which the engine's times may be longer, and the fewest requests of either kind that say something."""
CLOCK_ERROR_MS = 1.0
"""The engine rounds its times to a millisecond or takes them on its next step; the client's stamps are the kernel's."""
CLOCK_RATE_MAX = 500e-6
"""Two clocks that are kept in step run apart by at most this share (the limit of adjtime(3) and ntpd)."""


def timings_do_not_add_up(point: PointEvidence) -> Doubt | None:
    """Warn when requests whose residual is more than 5% miss more than 5% of the time of all, so that the means of the parts are
    wrong, or when in more than 1% of the requests it is negative beyond the clocks' error."""
    known = [(r.residual_ms, _answer_ms(r)) for r in point.ok if r.residual_ms is not None and _answer_ms(r) > 0]
    off = [r for r in point.ok if _is_off(r, point.row.itl_ms_mean or 0.0)]
    more = [(r.residual_ms or 0.0) / _answer_ms(r) for r in off]
    less = [residual for residual, e2e in known if residual < -CLOCK_ERROR_MS - CLOCK_RATE_MAX * e2e]
    causes = []
    missing = sum(r.residual_ms or 0.0 for r in off)
    if len(off) >= OFF_MIN and missing > RESIDUAL_SHARE_MAX * sum(e2e for _, e2e in known):
        early = sum((r.network_ms or 0.0) > (r.delivery_ms or 0.0) for r in off)
        where = "before the first token: network or front end" if 2 * early >= len(more) else "after the first token"
        causes.append(
            f"in {len(more)} of {len(known)} requests more than 5% of the time is in none of the engine's times "
            f"({short_percent(sum(more) / len(more))} on average there, mostly {where})"
        )
    if len(less) >= OFF_MIN and len(less) > OFF_SHARE_MAX * len(known):
        causes.append(
            f"in {len(less)} of {len(known)} requests the engine's times are longer than the client's, "
            f"by up to {-min(less):.1f} ms"
        )
    return catalog.TIMINGS_DO_NOT_ADD_UP.issue("; ".join(causes)) if causes else None


def _is_off(record: Record, step_ms: float) -> bool:
    """A request that arrives while the engine computes is seen when that step ends: so long a wait before the first token is not
    missing."""
    counted = record.server_e2e_ms is None and record.server_queue_ms is not None
    e2e_ms, waited_ms = _answer_ms(record), min(max(0.0, record.network_ms or 0.0), step_ms) if counted else 0.0
    return e2e_ms > 0 and (record.residual_ms or 0.0) - waited_ms > RESIDUAL_SHARE_MAX * e2e_ms + CLOCK_ERROR_MS


def _answer_ms(record: Record) -> float:
    return 0.0 if record.sent_ns is None else (record.ended_ns - record.sent_ns) / NS_PER_MS


CHECKS: tuple[Callable[[PointEvidence], Doubt | None], ...] = (
    load.level_not_reached,
    load.lock_step,
    load.too_few_requests,
    load.too_short,
    disturbed.machine_busy,
    disturbed.machine_shared,
    disturbed.not_stationary,
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
    tokens.answers_cut_off,
    tokens.cache_contaminated,
    tokens.hit_rate_missed,
    tokens.prompt_size_approximate,
    tokens.merged_events,
    tokens.not_streamed,
    timings_do_not_add_up,
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
