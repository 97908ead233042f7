"""Any running server with OpenAI's HTTP API."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from servebench.contracts.engine import Command, Engine, LaunchContext, ServerTimings
from servebench.engine.adapters import sglang, vllm
from servebench.protocol.json_values import milliseconds, object_at
from servebench.util.errors import ConfigError


class OpenAiEngine(Engine):
    """An endpoint of an unknown engine: no exact output length, no health path. Metrics with the names of vLLM or SGLang are
    read."""

    name = "openai"
    health_path = None
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {
        word: (*vllm.METRICS[word], *sglang.METRICS.get(word, ())) for word in vllm.METRICS
    }
    needs_gpu = False
    launchable = False

    def command(self, context: LaunchContext) -> Command:
        """Raise ConfigError: an endpoint has no command."""
        raise ConfigError("engine=openai has no command, since it is a running server; use endpoint=URL")

    def request_timings(self, answer: Mapping[str, Any], headers: Mapping[str, str]) -> ServerTimings:
        """Return the times of a server that reports them as vLLM or Dynamo."""
        return dynamo_timings(answer) if "nvext" in answer else vllm.vllm_timings(answer)


def dynamo_timings(answer: Mapping[str, Any]) -> ServerTimings:
    """Return the times in `nvext.timing`, which Dynamo sends to requests with `nvext.extra_fields: ["timing"]`
    (`lib/llm/src/protocols/common/timing.rs`). Its front end measures them; `ttft_ms` counts from the arrival there."""
    timing = object_at(answer, "nvext", "timing")
    ttft_ms, e2e_ms = milliseconds(timing.get("ttft_ms")), milliseconds(timing.get("total_time_ms"))
    return ServerTimings(
        queue_ms=milliseconds(timing.get("prefill_wait_time_ms")),
        prefill_ms=milliseconds(timing.get("prefill_time_ms")),
        kv_transfer_ms=milliseconds(timing.get("kv_transfer_estimated_latency_ms")),
        decode_ms=None if ttft_ms is None or e2e_ms is None else milliseconds(e2e_ms - ttft_ms),
        e2e_ms=e2e_ms,
    )
