"""Build requests from texts, and add what is not part of the prompt: images, adapters, priorities and further fields."""

import base64
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from servebench.contracts.request import Message, PriorAnswer, Request
from servebench.contracts.settings import WorkloadSettings
from servebench.protocol.kinds.table import kind_named
from servebench.workload.build.seeding import generator, zipf

LABELS = {"user": "User: ", "assistant": "Assistant: "}
NOISE = 24
"""How far a pixel differs from its surroundings, of 255: a file compresses about as well as a photograph's."""


def as_request(text: str, api: str, request_id: str, **more: object) -> Request:
    """Return a prompt as a request of the kind that the workload's `api` names. Raises ConfigError if there is none."""
    return kind_named(api).request(text, request_id, **more)


def as_requests(
    settings: WorkloadSettings, stream: str, texts: Sequence[str], **fields: Sequence[object]
) -> list[Request]:
    """Return one request for each text, with ids in the order of the stream. `fields` has the values of other fields, one for
    each text."""
    alike = {"exact_output": settings.exact_output, "temperature": settings.temperature}
    rows = enumerate(zip(texts, *fields.values(), strict=True))
    return [
        as_request(text, settings.api, f"{stream}-{index:05d}", **alike, **dict(zip(fields, own, strict=True)))
        for index, (text, *own) in rows
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


def images_of(request: Request, settings: WorkloadSettings) -> tuple[str, ...]:
    """Return the data URLs of a request's images; all requests of a session have the same."""
    one = settings.images
    if one is None:
        return ()
    owner = f"{settings.seed}/{request.session_id or request.request_id}"
    files = (png(one.width, one.height, f"{owner}/{place}") for place in range(one.count))
    return tuple("data:image/png;base64," + base64.b64encode(file).decode() for file in files)


def png(width: int, height: int, key: str) -> bytes:
    """Return a PNG file of smooth colours with noise, the same for the same key (RGB, 8 bits a channel; W3C PNG, section 5)."""
    import numpy as np

    rng = np.random.default_rng(list(sha256(key.encode()).digest()))
    corners = rng.integers(0, 256, (2, 2, 3)).astype(float)
    down, right = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[None, :, None]
    top, bottom = ((1 - right) * side[0] + right * side[1] for side in corners)
    pixels = (1 - down) * top + down * bottom + rng.integers(-NOISE, NOISE + 1, (height, width, 3))
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = pixels.clip(0, 255).reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
