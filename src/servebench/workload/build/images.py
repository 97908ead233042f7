"""Synthetic images for prompts: valid PNG files of smooth colours with noise, the same for the same seed."""

import base64
import struct
import zlib
from hashlib import sha256

from servebench.contracts.request import Request
from servebench.contracts.settings import WorkloadSettings

NOISE = 24
"""How far a pixel differs from its surroundings, of 255: a file compresses about as well as a photograph's."""


def images_of(request: Request, settings: WorkloadSettings) -> tuple[str, ...]:
    """Return the data URLs of a request's images; all requests of a session have the same."""
    one = settings.images
    if one is None:
        return ()
    owner = f"{settings.seed}/{request.session_id or request.request_id}"
    files = (png(one.width, one.height, f"{owner}/{place}") for place in range(one.count))
    return tuple("data:image/png;base64," + base64.b64encode(file).decode() for file in files)


def png(width: int, height: int, key: str) -> bytes:
    """Return a PNG file (RGB, 8 bits a channel; W3C PNG, section 5)."""
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
