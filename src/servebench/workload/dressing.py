"""What goes with the requests of any workload: the LoRA adapter that each asks for, and its priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servebench.contracts.request import Request
from servebench.contracts.settings import WorkloadSettings
from servebench.workload.rag_prefix import zipf
from servebench.workload.salt import generator


def dressed(request: Request, settings: WorkloadSettings) -> Request:
    """The request with `model` set to one of `adapters` and `priority` to one of `priorities`, where there are any.

    What is drawn follows from the seed and the request's id; the requests of a session all get the same. Adapters are
    drawn by Zipf's law, the k-th named with a weight of 1 / k^`adapter_skew`; priorities are all as likely.
    """
    more: dict[str, Any] = {}
    rng = generator(settings.seed, f"dressing/{request.session_id or request.request_id}")
    if settings.adapters:
        weights = zipf(len(settings.adapters), settings.adapter_skew)
        more["model"] = rng.choices(settings.adapters, weights)[0]
    if settings.priorities:
        more["priority"] = rng.choice(settings.priorities)
    return replace(request, extra=_merged(request.extra, more)) if more else request


def _merged(extra: Mapping[str, Any], more: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the workload itself set stays."""
    return {**more, **extra}
