"""Exports of spans, as an OpenTelemetry exporter sends them."""

import json
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

TRACE = "0af7651916cd43dd8448eb211c80319c"  # pragma: allowlist secret
BASE_NS, MS = 1_760_000_000_000_000_000, 1_000_000


def span(
    name: str, start_ms: int, end_ms: int, trace_id: str = TRACE, span_id: str = "", **latency: Any
) -> dict[str, Any]:
    """Return a span with these attributes below `gen_ai.latency.`; each has an id of its own."""
    span_id = span_id or f"{hash((name, start_ms, end_ms, trace_id)) & (2**64 - 1):016x}"
    times = (BASE_NS + start_ms * MS, BASE_NS + end_ms * MS)
    return {"trace_id": trace_id, "span_id": span_id, "name": name, "times": times, "latency": latency}


def vllm_span(
    *, queue: Any, prefill: Any, decode: Any, e2e: Any, trace_id: str = TRACE, span_id: str = ""
) -> dict[str, Any]:
    names = {"time_in_queue": queue, "time_in_model_prefill": prefill, "time_in_model_decode": decode, "e2e": e2e}
    return span("llm_request", 0, 1, trace_id, span_id, **names)


def exported(spans: list[dict[str, Any]], encoding: str) -> bytes:
    """Return the body of an export of these spans."""
    if encoding == "json":
        key = "gen_ai.latency.{}".format
        plain = [
            {"traceId": one["trace_id"], "spanId": one["span_id"], "name": one["name"],
             "startTimeUnixNano": str(one["times"][0]), "endTimeUnixNano": str(one["times"][1]),
             "attributes": [{"key": key(name), "value": _json_value(value)} for name, value in one["latency"].items()]}
            for one in spans
        ]  # fmt: skip
        return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": plain}]}]}).encode()
    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add().scope_spans.add()
    for one in spans:
        start_ns, end_ns = one["times"]
        written = Span(
            trace_id=bytes.fromhex(one["trace_id"]), span_id=bytes.fromhex(one["span_id"]), name=one["name"],
            start_time_unix_nano=start_ns, end_time_unix_nano=end_ns,
        )  # fmt: skip
        for key, value in one["latency"].items():
            attribute = written.attributes.add(key=f"gen_ai.latency.{key}")
            if isinstance(value, str):
                attribute.value.string_value = value
            else:
                attribute.value.double_value = value
        scope.spans.append(written)
    return message.SerializeToString()


def _json_value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    # protobuf's JSON writes these as text, and NaN and infinities are no JSON
    return {"doubleValue": value if value == value and abs(value) < float("inf") else str(value)}
