"""Decode exported spans (OTLP, `ExportTraceServiceRequest`) and read the engine's own times from them.

Formats: https://opentelemetry.io/docs/specs/otlp/ and the protobuf messages of `opentelemetry-proto`. In JSON, ids are
hexadecimal and integers are texts. Everything that an exporter sends is untrusted: only known names are kept.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import orjson

from servebench.contracts.engine import ServerTimings
from servebench.protocol.json_values import milliseconds
from servebench.util.units import NS_PER_MS

Encoding = Literal["protobuf", "json"]

LATENCY = "gen_ai.latency."
ATTRIBUTES = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode", "e2e")
"""Seconds, below `gen_ai.latency.`: `vllm/tracing/utils.py` of 0.32, `sglang/srt/observability/trace.py` of 0.5.23."""
QUEUE, PREFILL, KV_TRANSFER = "prefill_waiting", "prefill_forward", "prefill_transfer_kv_cache"
"""Spans of SGLang's scheduler: `sglang/srt/observability/req_time_stats.py` of 0.5.23."""


@dataclass(frozen=True, slots=True)
class EngineSpan:
    """A finished span: ids are hexadecimal, times are the exporter's nanoseconds, `attributes` those of ATTRIBUTES that it
    has."""

    trace_id: str
    span_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_ms(self) -> float | None:
        """How long it took; None for a time that cannot be one."""
        return milliseconds((self.end_ns - self.start_ns) / NS_PER_MS)


ITEMS_MAX = 50_000
"""Resources, scopes and spans of one export, which are read one by one: empty ones have two bytes. Exporters send 512 spans."""
JSON_OBJECTS_MAX = 20 * ITEMS_MAX
"""With the attributes of spans and their values."""


def check_message(body: bytes, encoding: Encoding) -> None:
    """Raise ValueError for a body that is not an export of spans, or has more than ITEMS_MAX."""
    if encoding == "protobuf":
        items = 0
        for resource in _message(body).resource_spans:
            items += 1 + sum(1 + len(scope.spans) for scope in islice(resource.scope_spans, ITEMS_MAX))
            if items > ITEMS_MAX:
                raise ValueError(f"more than {ITEMS_MAX} spans")
    elif body.count(b"{") > JSON_OBJECTS_MAX:
        raise ValueError(f"more than {JSON_OBJECTS_MAX} objects")
    elif not isinstance(orjson.loads(body), dict):
        raise ValueError("not a JSON object")


def spans_of(body: bytes, encoding: Encoding, wanted: Collection[str]) -> Iterator[EngineSpan]:
    """Yield the spans of these traces (hexadecimal ids) in a checked body. What has the wrong type is left out."""
    if encoding == "protobuf":
        yield from _protobuf_spans(body, wanted)
    else:
        yield from _json_spans(orjson.loads(body), wanted)


def _message(body: bytes) -> Any:
    # only needed by who receives spans, and slow to import
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        return ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise ValueError(str(error)) from error


def _protobuf_spans(body: bytes, wanted: Collection[str]) -> Iterator[EngineSpan]:
    for resource in _message(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                trace_id = span.trace_id.hex()
                if trace_id in wanted:
                    found = {
                        one.key.removeprefix(LATENCY): getattr(one.value, one.value.WhichOneof("value") or "", None)
                        for one in span.attributes
                        if one.key.startswith(LATENCY)
                    }
                    times = span.start_time_unix_nano, span.end_time_unix_nano
                    yield EngineSpan(trace_id, span.span_id.hex(), span.name, *times, _known(found))


def _json_spans(document: Any, wanted: Collection[str]) -> Iterator[EngineSpan]:
    for resource in _objects(document, "resourceSpans"):
        for scope in _objects(resource, "scopeSpans"):
            for span in _objects(scope, "spans"):
                trace_id, name = str(span.get("traceId")).lower(), span.get("name")
                start_ns, end_ns = (_integer(span.get(key)) for key in ("startTimeUnixNano", "endTimeUnixNano"))
                if trace_id in wanted and isinstance(name, str) and start_ns is not None and end_ns is not None:
                    found = {}
                    for one in _objects(span, "attributes"):
                        key, value = one.get("key"), one.get("value")
                        if isinstance(key, str) and key.startswith(LATENCY) and isinstance(value, dict):
                            found[key.removeprefix(LATENCY)] = next(iter(value.values()), None)
                    yield EngineSpan(trace_id, str(span.get("spanId")), name, start_ns, end_ns, _known(found))


def _objects(parent: Mapping[str, Any], key: str) -> Iterable[dict[str, Any]]:
    listed = parent.get(key)
    return (one for one in listed if isinstance(one, dict)) if isinstance(listed, list) else ()


def _integer(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        return int(value)
    return value if type(value) is int else None


def _known(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ATTRIBUTES if name in found}


def timings_of_spans(spans: Sequence[EngineSpan]) -> ServerTimings:
    """Return what the spans of one request say, by the conventions of vLLM or SGLang.

    vLLM has one span, `llm_request`, whose attributes are all durations. SGLang's root span has the same attributes without a
    queue: its `time_in_model_prefill` contains the queue and is not read. Queue and prefill are the lengths of spans of its
    scheduler; of several, after a preemption, the first counts.
    """
    by_start = sorted(spans, key=lambda span: span.start_ns)

    def attribute(name: str) -> float | None:
        values = (milliseconds(span.attributes.get(name), 1000.0) for span in by_start)
        return next((value for value in values if value is not None), None)

    def length(name: str) -> float | None:
        return next((span.duration_ms for span in by_start if span.name == name), None)

    queue_ms = attribute("time_in_queue")
    return ServerTimings(
        queue_ms=length(QUEUE) if queue_ms is None else queue_ms,
        prefill_ms=length(PREFILL) if queue_ms is None else attribute("time_in_model_prefill"),
        kv_transfer_ms=length(KV_TRANSFER),
        decode_ms=attribute("time_in_model_decode"),
        e2e_ms=attribute("e2e"),
    )
