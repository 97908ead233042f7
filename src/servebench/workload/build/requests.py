"""Build requests from texts, and add what is not part of the prompt."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from servebench.contracts.request import Message, PriorAnswer, Request
from servebench.contracts.settings import WorkloadSettings
from servebench.protocol.kinds.table import kind_named
from servebench.workload.build.images import images_of
from servebench.workload.build.seeding import generator, zipf

LABELS = {"user": "User: ", "assistant": "Assistant: "}


def as_request(text: str, api: str, request_id: str, **more: object) -> Request:
    """Return a prompt as a request of the kind that the workload's `api` names. Raises ConfigError if there is none."""
    return kind_named(api).request(text, request_id, **more)


def as_requests(
    settings: WorkloadSettings,
    stream: str,
    texts: Sequence[str],
    *,
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
    references: Sequence[Any] | None = None,
) -> list[Request]:
    """Return one request for each text, with ids in the order of the stream. All sequences have the same length."""
    return [
        as_request(
            text,
            settings.api,
            f"{stream}-{index:05d}",
            output_tokens=output_tokens[index],
            exact_output=settings.exact_output,
            temperature=settings.temperature,
            prompt_tokens=prompt_tokens[index],
            reference=None if references is None else references[index],
        )
        for index, text in enumerate(texts)
    ]


def transcript(messages: Sequence[Message], answers: Iterable[PriorAnswer]) -> str:
    """Return a conversation as one text that the model continues. Its own answers, in `answers`, begin with their own space."""
    marks = {answer.mark for answer in answers}
    lines = [
        f"Assistant:{one.content}" if one.content in marks else LABELS.get(one.role, "") + one.content
        for one in messages
    ]
    return "\n".join([*lines, "Assistant:"])


def add_extras(request: Request, settings: WorkloadSettings) -> Request:
    """Return the request with images, one of the `adapters` as its `model`, one of the `priorities`, and the fields of `body`.

    The first three follow from the seed and the request's id; all requests of a session get the same. Adapters are drawn by their
    weights, those of a list by Zipf's law, the k-th with a weight of 1 / k^`adapter_skew`; priorities are drawn uniformly. What
    the workload set itself stays, unless `body` has it.
    """
    extras: dict[str, Any] = {}
    rng = generator(settings.seed, f"dressing/{request.session_id or request.request_id}")
    if adapters := settings.adapters:
        weights = (
            list(adapters.values()) if isinstance(adapters, Mapping) else zipf(len(adapters), settings.adapter_skew)
        )
        extras["model"] = rng.choices(list(adapters), weights)[0]
    if settings.priorities:
        extras["priority"] = rng.choice(settings.priorities)
    found = {**extras, **request.extra, **settings.body}
    images = images_of(request, settings)
    return replace(request, extra=found, images=images) if images or found != request.extra else request
