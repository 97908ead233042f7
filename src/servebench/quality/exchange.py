"""Send one question to an endpoint that may be slow or hostile: every answer is bounded in time and size."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from servebench.util.tls import Trust, tls_context

if TYPE_CHECKING:
    import httpx

BUSY = (429, 503)
PAUSE_S = 0.5


def bounded_client(headers: Mapping[str, str], *, timeout_s: float, verify_tls: Trust) -> httpx.AsyncClient:
    """Return a client that accepts no encoding (a small compressed answer may expand without end) and uses no proxy of the
    environment. Raises ValueError, UnicodeError for a header that cannot be sent."""
    import httpx

    return httpx.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        timeout=timeout_s,
        verify=tls_context(verify_tls),
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
    )


async def bounded_post(
    http: httpx.AsyncClient,
    url: str,
    body: Mapping[str, Any],
    *,
    timeout_s: float,
    bytes_max: int,
    patient: bool = False,
) -> tuple[int, bytes]:
    """Return status and body. A body longer than `bytes_max` is cut a little behind it. With `patient`, a server that is busy is
    asked again after a pause, as long as `timeout_s` lasts.

    Raises TimeoutError when the whole body has not come in `timeout_s`, and httpx.HTTPError.
    """
    # every command imports this module, through `servebench.plugin`
    import asyncio

    ends_s, pause_s = time.monotonic() + timeout_s, PAUSE_S
    while True:
        content = bytearray()
        left_s = max(0.0, ends_s - time.monotonic())
        async with asyncio.timeout(left_s), http.stream("POST", url, json=dict(body)) as response:
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > bytes_max:
                    break
        # a `Retry-After` may also be a date
        wanted = re.fullmatch(r"[0-9]{1,8}", response.headers.get("Retry-After", ""))
        pause_s = max(pause_s, float(wanted[0]) if wanted else 0.0)
        if not patient or response.status_code not in BUSY or time.monotonic() + pause_s >= ends_s:
            return response.status_code, bytes(content)
        await asyncio.sleep(pause_s)
        pause_s *= 2
