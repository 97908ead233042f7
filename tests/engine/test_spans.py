"""Spans as OTLP carries them, and what those of each engine say."""

import json

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from servebench.contracts.emulation import Emulation, EmulationSpec
from servebench.contracts.engine import ServerTimings
from servebench.emulator.late import LateTimings
from servebench.emulator.responses import timings_of
from servebench.emulator.scheduler import EmulatedRequest
from servebench.engine.adapters.trtllm import kept_timings
from servebench.engine.adapters.vllm import vllm_timings
from servebench.engine.spans import check_message, spans_of, timings_of_spans
from support.spans import TRACE, exported, span, vllm_span

MS = 1_000_000
REQUEST = EmulatedRequest(
    key=1, prompt="", prompt_tokens=3, pieces=["a"] * 4, arrived_s=1.0, ready_s=1.25, admitted_s=1.5, first_s=2.0,
    last_s=4.0,
)  # fmt: skip


def read(body, encoding="protobuf"):
    check_message(body, encoding)
    return timings_of_spans(list(spans_of(body, encoding, {TRACE})))


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_attributes_of_vllm(encoding):
    """Its prefill does not contain the queue; all are seconds."""
    said = read(exported([vllm_span(queue=0.5, prefill=0.25, decode=2.0, e2e=2.875)], encoding), encoding)
    assert said == ServerTimings(queue_ms=500.0, prefill_ms=250.0, decode_ms=2000.0, e2e_ms=2875.0)


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_spans_of_sglang(encoding):
    """Its `time_in_model_prefill` contains the queue: prefill is a span of its scheduler, the first after a preemption."""
    spans = [
        span("prefill_forward", 900, 990),
        span("prefill_waiting", 100, 300),
        span("prefill_forward", 300, 350),
        span("prefill_transfer_kv_cache", 350, 362),
        span(" Req 0123", 50, 1400, time_in_model_prefill=0.3, time_in_model_decode=1.0, e2e=1.35),
    ]
    said = read(exported(spans, encoding), encoding)
    assert said == ServerTimings(queue_ms=200.0, prefill_ms=50.0, kv_transfer_ms=12.0, decode_ms=1000.0, e2e_ms=1350.0)
    alone = read(exported(spans[-1:], encoding), encoding)
    assert alone == ServerTimings(decode_ms=1000.0, e2e_ms=1350.0)


@pytest.mark.parametrize(("kind", "e2e_ms"), [("vllm", 3000.0), ("sglang", 3000.0)])
def test_emulated_spans_are_exact(kind, e2e_ms):
    """They say what the times in emulated vLLM's answers say."""
    emulation = Emulation(spans=kind, timings={"metrics": {"queue_time_ms": "queue_ms", "time_to_first_token_ms": "prefill_ms",
                                                           "generation_time_ms": "decode_ms"}})  # fmt: skip
    spec = EmulationSpec(
        engine="e", model_name="m", host="", port=0, emulation=emulation, spans_endpoint="http://127.0.0.1:9/"
    )
    late = LateTimings(spec)
    late.add(REQUEST, "cmpl-1", f"00-{TRACE}-{'b' * 16}-01")
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(late._spans)}]}]}).encode()
    said, answered = read(body, "json"), vllm_timings(timings_of(spec, REQUEST))
    assert (said.queue_ms, said.prefill_ms, said.decode_ms) == pytest.approx((250.0, 500.0, 2000.0), abs=1e-3)
    assert (answered.queue_ms, answered.prefill_ms, answered.decode_ms) == (250.0, 500.0, 2000.0)
    assert said.e2e_ms == e2e_ms


def test_the_emulated_list_is_exact():
    spec = EmulationSpec(engine="e", model_name="m", host="", port=0, emulation=Emulation(kept="list"), kept_folder="x")
    late = LateTimings(spec)
    late.add(REQUEST, "chatcmpl-7", "")
    (item,) = late.take()
    assert item["request_id"] == 7
    assert kept_timings(item) == ServerTimings(queue_ms=250.0, prefill_ms=500.0, decode_ms=2000.0)
    assert late.take() == []


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([span("prefill_waiting", 300, 100)], ServerTimings()),
        ([span("prefill_waiting", 0, 2**63 // MS)], ServerTimings()),
        ([vllm_span(queue=-1.0, prefill=float("nan"), decode=1e300, e2e="soon")], ServerTimings()),
        ([vllm_span(queue=float("inf"), prefill=1.0, decode=2.0, e2e=3.0)], ServerTimings(decode_ms=2000.0, e2e_ms=3000.0)),
        ([span("llm_request", 0, 1, trace_id="f" * 32, time_in_queue=1.0)], ServerTimings()),
        ([], ServerTimings()),
    ],
)  # fmt: skip
def test_absurd_times_and_spans_of_others_say_nothing(spans, said, encoding):
    assert read(exported(spans, encoding), encoding) == said


@pytest.mark.parametrize(
    "document",
    [
        {}, {"resourceSpans": None}, {"resourceSpans": [1, {"scopeSpans": {}}]}, {"resourceSpans": [{"scopeSpans": [[]]}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": [None, {"traceId": 1}, {"traceId": TRACE}]}]}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": TRACE, "name": "n", "startTimeUnixNano": "x" * 99,
                                                       "endTimeUnixNano": 1e9}]}]}]},
    ],
)  # fmt: skip
def test_json_of_any_shape_is_read(document):
    assert read(json.dumps(document).encode(), "json") == ServerTimings()


def test_attributes_of_any_shape_are_read():
    odd = [None, {"key": 1}, {"key": "gen_ai.latency.e2e"}, {"key": "gen_ai.latency.e2e", "value": [1]},
           {"key": "gen_ai.latency.e2e", "value": {}}]  # fmt: skip
    one = {"traceId": TRACE, "name": "n", "startTimeUnixNano": "1", "endTimeUnixNano": "2", "attributes": odd}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}).encode()
    assert read(body, "json") == ServerTimings()


@pytest.mark.parametrize(
    ("body", "encoding"),
    [(b"junk", "json"), (b"[]", "json"), (b"[" * 100_000, "json"), (b"\xff\xff", "protobuf"), (b"\x0a\x7f\x00", "protobuf")],
)  # fmt: skip
def test_junk_is_refused(body, encoding):
    with pytest.raises(ValueError):  # noqa: PT011 - the reader's own text
        check_message(body, encoding)


def test_a_truncated_export_is_refused_or_read_in_part():
    """At each length: never another error."""
    body = exported([vllm_span(queue=0.5, prefill=0.25, decode=2.0, e2e=3.0)] * 2, "protobuf")
    refused = 0
    for length in range(len(body)):
        try:
            read(body[:length])
        except ValueError:
            refused += 1
    assert refused > 0.9 * len(body)
    assert ExportTraceServiceRequest.FromString(body).resource_spans
