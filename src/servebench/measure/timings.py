"""Where the time of a request goes: the engine's own durations, and what of the client's they leave over.

The clocks of client and server are never compared, only durations, each measured on one clock:

    client (scheduled to sent) + network + queue + prefill + KV transfer + decode + delivery = E2E from the schedule

The engine reports queue, prefill, KV transfer and decode. `network` is what remains before the first content event: the
network both ways, and the server's front end (HTTP, tokenizer). `delivery` is what remains after it. The end is that of the
answer (its last byte), because the last token may have no text. So the sum always holds; whether it can be believed shows
in the residual: the time in the server that the engine does not account for. It must be small, and not negative.
"""

from dataclasses import fields
from typing import Any

from servebench.contracts.engine import ServerTimings
from servebench.util.units import NS_PER_MS


def timing_columns(
    said: ServerTimings, sent_ns: int, first_event_ns: int, answered_ns: int, *, source: str = "answer"
) -> dict[str, Any]:
    """Return the columns of a request that was sent, had its first content event and was completely answered at these times.
    `source` is where the engine's times are from.

    All but the source are milliseconds, null where the engine does not report what they need. The residual is network and
    delivery, less the front end if the engine reports its E2E. Without a queue the network contains it, so only delivery is a
    residual. A first token that is delivered late makes the delivery negative and the network as much longer.
    """
    columns: dict[str, Any] = {f"server_{one.name}": getattr(said, one.name) for one in fields(ServerTimings)}
    e2e_ms = (answered_ns - sent_ns) / NS_PER_MS
    network_ms = delivery_ms = residual_ms = None
    if said.prefill_ms is not None:
        before_ms = (said.queue_ms or 0.0) + said.prefill_ms + (said.kv_transfer_ms or 0.0)
        network_ms = (first_event_ns - sent_ns) / NS_PER_MS - before_ms
    if said.decode_ms is not None:
        delivery_ms = (answered_ns - first_event_ns) / NS_PER_MS - said.decode_ms
    if said.e2e_ms is not None:
        residual_ms = e2e_ms - said.e2e_ms
    elif network_ms is not None and delivery_ms is not None:
        residual_ms = network_ms + delivery_ms
        if said.queue_ms is None:
            residual_ms = min(residual_ms, max(0.0, delivery_ms))
    known = any(value is not None for value in columns.values())
    columns["timings_from"] = source if known else None
    return {**columns, "network_ms": network_ms, "delivery_ms": delivery_ms, "residual_ms": residual_ms}
