"""What the records and the point of a phase need beside what was sent and answered."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servebench.contracts.request import Request
from servebench.util.file_redaction import Traces


@dataclass(frozen=True, kw_only=True)
class SliceFacts:
    """How a point is measured in slices, in turns with other engines."""

    slices: Sequence[Sequence[float]] = ()
    """When each opens and closes, in seconds from the start of the phase, in order. Requests are only sent in these. Empty: an
    ordinary point."""
    slice_drain_s: float = 0.0
    """How long its last requests may take after a slice."""
    slice_requests: int = 0
    """How many requests are kept for each slice (`PointPlan.slice_requests`)."""
    slice_lead_s: float = 0.0
    """How long after a slice opens its load is not yet steady, which is left out."""
    slice_group: str | None = None
    """What the points share that were measured in turns with each other."""


@dataclass(frozen=True, kw_only=True)
class PhaseFacts(SliceFacts):
    """Facts of a phase that its records need. Stored next to the spool, so that a killed run can be recovered."""

    run_id: str
    point: str
    warmup: bool
    concurrency: int | None
    repeat: int
    planned: Mapping[str, tuple[int | None, int, bool]]
    """For each request_id: planned prompt tokens, requested output tokens, whether exactly that many were requested."""
    api: str = "chat"
    apis: dict[str, str] = field(default_factory=dict)
    """By request_id: the kinds of requests that are not of the kind `api`."""
    rate: float | None = None
    engine_version: str | None = None
    cache_state: str | None = None
    tokenizer_name: str = "the tokenizer"
    tokenizer_exact: bool = True
    start_id: str | None = None
    server_started_ns: int | None = None
    """When servebench started the server; null for one that it did not start."""
    server_requests_before: int | None = None
    """How many requests it had sent to it since."""
    fillers: Collection[str] = ()
    """The ids of the requests that only keep the level."""
    references: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By request_id: the `schema` and the `reference` that its answer is compared with."""
    jobs: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By session: the job that it works for, and how many requests that has in all."""
    span_headers: bool = False
    keep_ids: bool = False
    """Whether the `id` of each answer is kept: times that the engine gives after the load are found by it."""
    timings_of: str | None = None
    """The engine whose request timings are read; null: none are."""
    noise_from: str | None = None
    """The long point from which the wander of the engine was learned; null: nothing is known of it."""
    wander: Sequence[Sequence[float]] = ()
    """How likely each time and size of wander is by it (`LearnedNoise.likelihood`)."""
    mean_tokens: float | None = None
    """The mean of the distribution from which the tokens of each answer are drawn; null where it is not known."""
    traces: Traces = field(default_factory=dict)
    """By what the secrets that answers may repeat are found after a kill."""

    @property
    def name(self) -> str:
        """The name of the phase, of which ids of its spans are made; the warm-up of a point has its own request ids."""
        return f"{self.run_id}/{self.point}"

    def of_record(self, request_id: str) -> dict[str, Any]:
        """Return the columns of the record of a request that were known before it was sent."""
        prompt_tokens, output_tokens, _ = self.planned.get(request_id, (None, None, False))
        return {
            "run_id": self.run_id,
            "point": self.point,
            "request_id": request_id,
            "warmup": self.warmup,
            "filler": request_id in self.fillers,
            "planned_prompt_tokens": prompt_tokens,
            "asked_output_tokens": output_tokens,
        }

    def requests(self) -> list[Request]:
        """Return the requests of the phase that have a schema or reference, without their prompts."""
        return [
            Request(request_id=name, schema=one.get("schema"), reference=one.get("reference"))
            for name, one in self.references.items()
        ]
