"""Make a preview of a workload: what it would send, without an engine."""

from servebench.contracts.request import Request, Workload
from servebench.contracts.settings import RunSettings
from servebench.engine.tokenize import offline_tokenizer
from servebench.registry.registry import Registry
from servebench.report.screens.preview import EXAMPLES, Preview
from servebench.util.errors import ConfigError
from servebench.workload.build.requests import add_extras
from servebench.workload.dataset import DatasetWorkload
from servebench.workload.ideal_cache import BLOCK_TOKENS, hit_rate, ideal_hits, whole_text

PREVIEW_REQUESTS = 100
STREAM = "preview"


def preview_key(settings: RunSettings) -> tuple[object, ...]:
    """Return the settings on which a preview depends: those with equal keys have the same preview."""
    return (
        settings.workload,
        settings.model,
        settings.load.requests,
        settings.engine.name,
        settings.engine.max_model_len,
    )


def preview(settings: RunSettings, registry: Registry) -> Preview:
    """Return the requests of a workload with their lengths and ideal cache hits. Raises ConfigError."""
    workload: Workload = registry.find("workload", settings.workload.name)(settings.workload)
    if faults := workload.check():
        raise ConfigError(faults)
    tokenizer = offline_tokenizer(settings.model)
    wanted = settings.load.requests
    count = wanted if isinstance(wanted, int) else PREVIEW_REQUESTS
    planned = [add_extras(r, settings.workload) for r in workload.requests(count, stream=STREAM, tokenizer=tokenizer)]
    stand_ins = {answer.of: answer.stand_in for request in planned for answer in request.answers}
    requests: list[Request] = [request.filled(stand_ins) for request in planned]
    data = workload.in_order(EXAMPLES, tokenizer=tokenizer) if isinstance(workload, DatasetWorkload) else None
    shown = requests if data is None else [add_extras(r, settings.workload).filled({}) for r in data[2]]
    # of a conversation its last turn, which has all the others
    examples = list({one.session_id or one.request_id: one for one in shown}.values())[:EXAMPLES]
    counts = tokenizer.count([whole_text(one) for one in examples])
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
        notes=workload.notes(),
        data=data and data[:2],
        salted=data is not None and settings.workload.cache == "cold",
        # with further texts, a prompt is only the first of them
        examples=[
            (one, (one.inputs and one.prompt_tokens) or count) for one, count in zip(examples, counts, strict=True)
        ],
        requests=requests,
        input_tokens=[
            (one.inputs and one.prompt_tokens) or total for one, (_, total) in zip(requests, hits, strict=True)
        ],
        output_tokens=[request.output_tokens for request in requests],
        ideal_hit_rate=None if any(one.images for one in requests) else hit_rate(hits),
        block_tokens=BLOCK_TOKENS,
        engine_counts=registry.engine(settings.engine.name).tokenize_path is not None,
        limit_tokens=settings.engine.max_model_len or settings.model.context_length,
        limit_key="engine.max_model_len" if settings.engine.max_model_len else "model.context_length",
    )
