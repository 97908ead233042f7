"""The definition of every metric: from the bytes of an exchange to a record, and from a record to its metrics.

Times are integer nanoseconds, CLOCK_REALTIME; metrics are milliseconds. A metric that is undefined for a request is
None, never 0.

| name | definition |
|---|---|
| content event | an SSE event with generated content: a non-empty `delta.content`, `delta.refusal`, `delta.reasoning`, `delta.reasoning_content` or `text`, a tool call with a name or arguments, or non-empty `token_ids`, in any choice. Role-only and empty deltas, `content: null`, comments, usage and progress chunks do not count |
| TTFT | first content event - sent |
| TTFT from schedule | first content event - scheduled |
| TTFO | first event with content that is not reasoning - sent; token ids alone do not show whether they are reasoning, and do not count |
| ITL | each gap between consecutive content events of a request |
| TPOT | (last content event - first) / (tokens of all content events - those of the first; where unknown, output tokens - 1); needs two tokens and two events: an answer that came in one piece shows no time between tokens |
| E2E | last content event - sent |
| lateness | sent - scheduled; in a closed loop the schedule is the moment the slot was free |
| output tokens | those that were sent: the server's usage without hidden tokens (unknown where it is more than text and tool calls can have, or 0 beside content); else token ids in the stream; else a tokenizer. `counted_by` says which |
| hidden tokens | `reasoning_tokens` of the usage where no reasoning was sent |
| tokens of an event | its token ids; else the growth of a usage sent with every event; else the growth of llama.cpp's `timings.predicted_n`; else unknown |

The time of a request, where it goes: the engine's own durations, and what of the client's they leave over.

The clocks of client and server are never compared, only durations, each measured on one clock:

    client (scheduled to sent) + network + queue + prefill + KV transfer + decode + delivery = E2E from the schedule

The engine reports queue, prefill, KV transfer and decode. `network` is what remains before the first content event: the
network both ways, and the server's front end (HTTP, tokenizer). `delivery` is what remains after it. The end is that of the
answer (its last byte), because the last token may have no text. So the sum always holds; whether it can be believed shows
in the residual: the time in the server that the engine does not account for. It must be small, and not negative.
"""  # noqa: E501

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from servebench.contracts.engine import ServerTimings
from servebench.contracts.exchange import Exchange, WireOutcome
from servebench.contracts.phase import PhaseFacts
from servebench.contracts.results import Outcome, Record
from servebench.protocol import answer, stream
from servebench.protocol.errors import describe_http_error, error_message, error_text, retry_after_s
from servebench.protocol.framing import HttpResponse
from servebench.protocol.kinds.table import kind_named
from servebench.util.units import NS_PER_MS, NS_PER_S

ReadTimings = Callable[[Mapping[str, Any], Mapping[str, str]], ServerTimings]
"""Reads the engine's own times from the fields of an answer and its headers: `Engine.request_timings`."""

ID_CHARACTERS_MAX = 200

_OTHERWISE = {"closed": "truncated", "complete": "truncated", "too_large": "protocol", "tls": "protocol"}
"""The outcome of a request by how its connection ended, unless it is called the same, or the answer itself says more."""

_OF_EXCHANGE = (
    "session_id",
    "scheduled_ns",
    "connect_started_ns",
    "connected_ns",
    "sent_ns",
    "ended_ns",
    "stamp_source",
)
_OF_SCAN = (
    *("first_output_ns", "event_ns", "reads_merged", "prompt_tokens", "cached_tokens", "reasoning_tokens"),
    *("finish_reason", "text", "reasoning", "error_code"),
)
"""Columns that a record takes over from the exchange and from its answer under the same names."""


def record(exchange: Exchange, facts: PhaseFacts, timings: ReadTimings | None = None) -> Record:
    """Return the record of one exchange of a phase. Pure. Never raises for what a server sent: that becomes an outcome.

    `timings` reads the engine's own times of a successful answer. A failed request keeps its events. A status that is neither
    2xx nor interim is an `http_error`.
    """
    planned = facts.of_record(exchange.request_id)
    scan = kind_named(facts.apis.get(exchange.request_id, facts.api)).scan()
    message = stream.read(exchange.reads, scan)
    outcome, error = _outcome(exchange.outcome, exchange.error, message, scan, planned["asked_output_tokens"])
    output_tokens, counted_by = scan.count()
    event_ns = scan.event_ns
    times: dict[str, Any] = {}
    if timings is not None and outcome == "ok" and exchange.sent_ns is not None and event_ns:
        # what a server says may surprise a plugin, and costs no more than these columns
        with contextlib.suppress(TypeError, AttributeError, LookupError, ValueError, ArithmeticError):
            said = timings(scan.details, message.headers)
            times = timing_columns(said, exchange.sent_ns, event_ns[0], exchange.reads[-1][0])
    answer_id = scan.details.get("id") if facts.keep_ids else None
    return Record(
        **planned,
        **{name: getattr(exchange, name) for name in _OF_EXCHANGE},
        **{name: getattr(scan, name) for name in _OF_SCAN},
        first_event_ns=event_ns[0] if event_ns else None,
        last_event_ns=event_ns[-1] if event_ns else None,
        event_tokens=scan.event_tokens(),
        output_tokens=output_tokens,
        hidden_tokens=scan.hidden_tokens if scan.usage_tokens is not None else None,
        counted_by=counted_by,
        outcome=outcome,
        http_status=message.status,
        retry_after_s=retry_after_s(message.headers, exchange.ended_ns / NS_PER_S),
        error=error,
        answered_ns=exchange.reads[-1][0] if outcome == "ok" else None,
        response_id=answer_id[:ID_CHARACTERS_MAX] if isinstance(answer_id, str) else None,
        **times,
    )


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


def spoken(reads: Sequence[bytes], api: str = "chat", *, whole: bool = True) -> str:
    """Return the text of the answer in the reads of an HTTP response, without reasoning, for the history of the next prompt.

    With `whole=False` the answer was abandoned and may be empty. Raises ValueError with the reason for a failed request.
    """
    scan = kind_named(api).scan()
    message = stream.read([(0, data) for data in reads], scan)
    if whole:
        outcome, why = _outcome("complete", None, message, scan, None)
        if outcome != "ok":
            raise ValueError(f"{outcome}: {why}")
    return scan.text


def count_missing(records: Sequence[Record], count: Callable[[list[str]], list[int]]) -> list[Record]:
    """Return the records with missing token counts filled in by `count` (texts to tokens), which is called once.

    Reasoning and answer are counted apart and added. Records without text stay as they are.
    """
    missing = [r for r in records if r.output_tokens is None and (r.text or r.reasoning)]
    if not missing:
        return list(records)
    texts = [text for r in missing for text in (r.reasoning, r.text) if text]
    counts = iter(count(texts))
    counted = {id(r): sum(next(counts) for text in (r.reasoning, r.text) if text) for r in missing}
    return [
        replace(r, output_tokens=counted[id(r)], counted_by="tokenizer") if id(r) in counted else r for r in records
    ]


def ttft_ms(record: Record) -> float | None:
    """Return the time to first token: first content event minus sent."""
    return _between_ms(record.sent_ns, record.first_event_ns)


def ttft_from_schedule_ms(record: Record) -> float | None:
    """Return the first content event minus the scheduled time: what a user waited."""
    return _between_ms(record.scheduled_ns, record.first_event_ns)


def ttfo_ms(record: Record) -> float | None:
    """Return the time to first output: first content that is not reasoning, minus sent."""
    return _between_ms(record.sent_ns, record.first_output_ns)


def tpot_ms(record: Record) -> float | None:
    """Return the time per output token after the first event: (last content event - first) / (tokens of all events - those of
    the first). Where the stream does not give them, all are the output tokens, and the first event has one.

    None for fewer than two or an unknown number of output tokens, and when all content came in one event.
    """
    if record.output_tokens is None or record.output_tokens < 2 or len(record.event_ns) < 2:
        return None
    each = record.event_tokens
    later = sum(each) - max(1, each[0]) if each else record.output_tokens - 1
    return (record.event_ns[-1] - record.event_ns[0]) / NS_PER_MS / later if later > 0 else None


def e2e_ms(record: Record) -> float | None:
    """Return the end-to-end latency: last content event minus sent."""
    return _between_ms(record.sent_ns, record.last_event_ns)


def lateness_ms(record: Record) -> float | None:
    """Return sent minus scheduled: the client's own delay."""
    return _between_ms(record.scheduled_ns, record.sent_ns)


def connect_ms(record: Record) -> float | None:
    """Return the time to connect, TLS included; None when the request used an open connection."""
    return _between_ms(record.connect_started_ns, record.connected_ns)


def _between_ms(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) / NS_PER_MS


def _outcome(
    wire: WireOutcome,
    said: str | None,
    message: HttpResponse,
    scan: answer.AnswerScan,
    asked_output_tokens: int | None,
) -> tuple[Outcome, str | None]:
    """Return how the request ended, and why. An error from the server takes precedence over how the connection ended."""
    if wire in ("complete", "closed", "reset"):
        if message.status is not None and not 200 <= message.status < 300:
            return "http_error", describe_http_error(message)
        if message.error is not None:
            return "protocol", message.error
        if scan.error is not None:
            return "stream_error", scan.error
    if wire == "complete" and message.complete:
        return _ending(scan, asked_output_tokens)
    outcome = cast("Outcome", _OTHERWISE.get(wire, wire))
    if outcome == "truncated":
        return outcome, said or f"the connection closed early, after {len(scan.event_ns)} content events"
    return outcome, said or wire


def _unknown_lines(scan: answer.AnswerScan) -> str:
    """Return how many lines were no event, and the first of them: servers write errors in mid-stream as bare JSON."""
    if not scan.unknown_lines:
        return ""
    counted = (
        "1 line was no event" if scan.unknown_lines == 1 else f"{scan.unknown_lines} lines were no event, the first"
    )
    return f" ({counted}: {error_text(scan.unknown_line)})"


def _ending(scan: answer.AnswerScan, asked_output_tokens: int | None) -> tuple[Outcome, str | None]:
    events = len(scan.event_ns)
    # in an object that names no error
    reported = f": {message}" if (message := error_message(scan.details)) else ""
    if not scan.said_end:
        content = f"{events} content event{'' if events == 1 else 's'}"
        return "truncated", (
            f"the stream ended without a finish reason, [DONE] or usage, after {content}{_unknown_lines(scan)}{reported}"
        )
    if not events and asked_output_tokens != 0:
        reason = f", finish reason '{scan.finish_reason}'" if scan.finish_reason else ""
        counted = f", usage counts {scan.usage_tokens} tokens" if scan.usage_tokens is not None else ""
        return "empty", f"the answer has no generated content{reason}{counted}{reported}"
    return "ok", None
