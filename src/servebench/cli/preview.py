"""`--preview`: what a workload would ask, shown without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from servebench.config import compose_jobs
from servebench.contracts.request import Request, Workload
from servebench.contracts.settings import RunSettings
from servebench.engine.tokenize import offline_tokenizer
from servebench.registry.registry import Registry
from servebench.report.terminal.preview import Preview, show_preview
from servebench.util.errors import PreflightError
from servebench.workload.build.requests import add_extras
from servebench.workload.ideal_cache import BLOCK_TOKENS, hit_rate, ideal_hits

PREVIEW_REQUESTS = 100
STREAM = "preview"


def preview(words: Sequence[str], registry: Registry) -> int:
    """Show each different workload of the jobs that the words ask for: examples, lengths, and how much a prefix cache
    could help. Starts nothing. Returns 0. Raises ConfigError, PreflightError."""
    shown: list[_Asked] = []
    for job in compose_jobs(words, registry):
        asked = _Asked(job.settings)
        if asked in shown:
            continue
        shown.append(asked)
        show_preview(_made(asked.settings, registry))
    return 0


@dataclass(frozen=True)
class _Asked:
    """Settings that are the same preview when workload, model and count are."""

    settings: RunSettings

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Asked):
            return NotImplemented
        mine, others = self.settings, other.settings
        return (mine.workload, mine.model, mine.load.requests, mine.engine.max_model_len) == (
            others.workload,
            others.model,
            others.load.requests,
            others.engine.max_model_len,
        )

    __hash__ = None  # type: ignore[assignment]


def _made(settings: RunSettings, registry: Registry) -> Preview:
    workload: Workload = registry.find("workload", settings.workload.name)(settings.workload)
    if faults := workload.check():
        raise PreflightError("\n".join(faults))
    tokenizer = offline_tokenizer(settings.model)
    count = settings.load.requests
    count = count if isinstance(count, int) else PREVIEW_REQUESTS
    asked = [add_extras(r, settings.workload) for r in workload.requests(count, stream=STREAM, tokenizer=tokenizer)]
    stand_ins = {answer.of: answer.stand_in for request in asked for answer in request.answers}
    requests: list[Request] = [request.filled(stand_ins) for request in asked]
    hits = ideal_hits(
        requests,
        tokenizer,
        answers=[
            (place + 1, request, stand_ins[request.request_id])
            for place, request in enumerate(requests)
            if request.request_id in stand_ins
        ],
    )
    return Preview(
        workload=settings.workload.name,
        model=settings.model.name,
        tokenizer=tokenizer.name,
        exact=tokenizer.exact,
        requests=requests,
        input_tokens=[total for _, total in hits],
        output_tokens=[request.output_tokens for request in requests],
        ideal_hit_rate=hit_rate(hits),
        block_tokens=BLOCK_TOKENS,
        limit_tokens=settings.engine.max_model_len or settings.model.context_length,
        limit_key="engine.max_model_len" if settings.engine.max_model_len else "model.context_length",
    )
