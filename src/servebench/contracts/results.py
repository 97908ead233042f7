"""The results of a run: a record for each request, points with their warnings, judged answers, and how the run ended."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Literal

from servebench.contracts.columns import about, column
from servebench.contracts.point_id import PointId
from servebench.contracts.point_row import PointRow, Verdict
from servebench.util.errors import FailureKind

SCHEMA_VERSION = 2
"""Version of the stored files, raised when a key or column changes its meaning; `store.files` reads older ones."""

SUMMED = ("_tokens", "_usd")
"""Details of graded answers whose name ends so are summed over all answers; others are averaged."""

Outcome = Literal[
    "ok", "http_error", "stream_error", "truncated", "empty", "timeout", "reset", "refused", "cancelled", "protocol",
    "abandoned", "session_ended",
]  # fmt: skip
"""`ok`: answered completely. `http_error`: a status that is not 2xx. `stream_error`: an error event inside HTTP 200.
`truncated`: the stream ended without a finish reason, `[DONE]` or usage, or the connection closed early. `empty`: no
generated content. `abandoned`: the client left on purpose (`load.cancel_fraction`); neither ok nor failed.
`session_ended`: never sent, because an answer that its prompt needs failed. The others as in `WireOutcome` (`too_large` and
`tls` count as `protocol`)."""

OURS = ("cancelled", "abandoned")
"""Outcomes caused by the client, which do not describe the engine."""
BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, 529)
"""Statuses of a server that has too much to do, or nobody to do it just now; 529 is Anthropic's."""
_TOO_MANY = re.compile("^(429|503|529)$|rate.?limit|too.?many.?requests|overloaded|service.?unavailable", re.I)
"""The status (OpenRouter, LiteLLM, vLLM), OpenAI's `rate_limit_exceeded`, Anthropic's `rate_limit_error`, `overloaded_error`."""

CountedBy = Literal["usage", "token_ids", "tokenizer"]

Thinking = Literal["cut", "graded", "unfinished"]
"""What became of an answer's thinking: `cut` before it was graded, `graded` with it, or `unfinished`: the answer ended inside it,
and counts as not answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request, failed ones too: a row of requests.parquet. Its answer is stored apart, in answers.parquet. What is
    unknown is null."""

    run_id: str = field(metadata=about("", "The run, as `study/run`."))
    point: str = field(metadata=about("", "Name of the point that it belongs to."))
    request_id: str = field(
        metadata=about("", "Name of the request, unique in its run; the header `x-request-id` is `run_id` and this.")
    )
    session_id: str | None = column("", "The conversation that it belongs to; sent as `x-session-id` if asked.")
    scheduled_ns: int = field(metadata=about("ns", "When the plan wanted it sent."))
    sent_ns: int | None = column("ns", "When its first byte was handed to the kernel.")
    first_event_ns: int | None = column("ns", "When the first content event arrived.")
    last_event_ns: int | None = column("ns", "When the last content event arrived.")
    ended_ns: int = field(metadata=about("ns", "When it was over, answered or not."))
    event_ns: list[int] = field(default_factory=list, metadata=about("ns", "When each content event arrived."))
    event_tokens: list[int] | None = column(
        "tokens", "Tokens that each content event carried, where the stream says so.", bits=32
    )
    prompt_tokens: int | None = column("tokens", "Prompt tokens, by the server's count.", bits=32)
    cached_tokens: int | None = column("tokens", "Prompt tokens found in the prefix cache.", bits=32)
    output_tokens: int | None = column("tokens", "Output tokens that were sent, counted as `counted_by` says.", bits=32)
    counted_by: CountedBy | None = column("", "Who counted the output: usage, token_ids or tokenizer.")
    outcome: Outcome = field(metadata=about("", "How it ended: `ok`, or why it failed."))
    http_status: int | None = column("", "Status of the HTTP response.", bits=32)
    error: str | None = column("", "What went wrong, in one line.")
    retry_after_s: float | None = column("s", "How long the server asked to wait (`Retry-After`) when it refused.")
    warmup: bool = column(
        "", "Whether it is not measured: sent before the measurement, or to keep its level (`filler`).", default=False
    )
    connect_started_ns: int | None = column("ns", "When a new connection for it was started.")
    connected_ns: int | None = column("ns", "When that connection was ready.")
    first_output_ns: int | None = column("ns", "When the first content that is not reasoning arrived.")
    reads_merged: int = column("", "Content events that arrived in one read with an earlier one.", bits=32, default=0)
    planned_prompt_tokens: int | None = column("tokens", "Prompt tokens, by the workload's count.", bits=32)
    reasoning_tokens: int | None = column("tokens", "Output tokens that are reasoning.", bits=32)
    asked_output_tokens: int | None = column("tokens", "The most output tokens that were requested.", bits=32)
    finish_reason: str | None = column("", "Why the engine ended the answer, such as stop or length.")
    stamp_source: str = field(
        metadata=about("", "Who stamped what arrived: `kernel`, or `user` for the client itself.")
    )
    hidden_tokens: int | None = column(
        "tokens", "Reasoning that usage counts and the server did not send; not in the output.", bits=32
    )
    filler: bool = column(
        "", "Whether it was sent only to keep the level while the last measured requests ended.", default=False
    )
    traceparent: str | None = column("", "Its W3C trace context, where `load.span_headers` sent one.")
    answered_ns: int | None = column("ns", "When the last byte of a complete answer arrived.")
    response_id: str | None = column("", "The `id` of its answer, where the engine's times are found by it.")
    timings_from: str | None = column(
        "", "Where the engine's times are from: `answer`, `spans`, `after_load`, or two of them joined by `+`."
    )
    server_queue_ms: float | None = column("ms", "In the engine's queue until it was scheduled first, says the engine.")
    server_prefill_ms: float | None = column("ms", "From being scheduled to its first token, says the engine.")
    server_kv_transfer_ms: float | None = column("ms", "Transfer of its KV cache between workers, says the engine.")
    server_decode_ms: float | None = column("ms", "From its first token to its last, says the engine.")
    server_e2e_ms: float | None = column("ms", "All of its time in the server, says the engine.")
    network_ms: float | None = column(
        "ms",
        "Network and front end: TTFT less the engine's queue (included if it reports none), prefill and KV transfer.",
    )
    delivery_ms: float | None = column(
        "ms", "From the first content event to the end of the answer, minus the engine's decode time."
    )
    error_code: str | None = column("", "The code or type of an error that came inside HTTP 200.")
    residual_ms: float | None = column(
        "ms",
        "Time from sent to the end of the answer that no time of the engine covers; negative: the engine reports more.",
    )
    text: str = ""
    reasoning: str = ""

    @property
    def measured(self) -> bool:
        """Whether it belongs to the measurement: sent neither before it nor to keep its level."""
        return not self.warmup and not self.filler


def refused(record: Record) -> bool:
    """Whether the server was too busy for a request: HTTP 429, 503 or 529, or too many requests as an error inside HTTP 200."""
    if record.outcome == "stream_error":
        return _TOO_MANY.search(record.error_code or "") is not None
    return record.http_status in BUSY and record.outcome == "http_error"


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A warning about a point. A `void` one makes the point void, others doubtful; a `mark` does not change the verdict."""

    code: str
    message: str
    remedy: str
    void: bool = False
    mark: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One session of a point: an agent, a sub-agent or a conversation. What is unknown is None, never 0."""

    point: str = column("", "Name of the point.", default="")
    job: str = column(
        "", "What the session works for: the session of the agent, or the conversation itself.", default=""
    )
    session: str = column("", "Name of the session, as in requests.parquet.", default="")
    requests: int = column("", "Its requests in the point.", default=0)
    requests_ok: int = column("", "Those that were answered completely.", default=0)
    seconds: float | None = column("s", "From its first request sent to its last answer, pauses included.")
    input_tokens: int = column("tokens", "Prompt tokens of its ok requests.", default=0)
    output_tokens: int = column("tokens", "Output tokens of its ok requests.", default=0)
    prefix_cache_hit_rate: float | None = column(
        "0..1", "Share of its prompt tokens that the engine found in its cache."
    )
    prefix_cache_hit_rate_ideal: float | None = column("0..1", "The best share that a prefix cache could have found.")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One load level of a run: its columns, the warnings about it, and its sessions where its workload has jobs."""

    row: PointRow
    doubts: tuple[Doubt, ...] = ()
    sessions: tuple[SessionRow, ...] = ()

    @property
    def id(self) -> PointId:
        """The level, repeat and attempt of the point."""
        return PointId.parse(self.row.point)

    @property
    def verdict(self) -> Verdict:
        """`void` if any warning is, else `doubtful` if any is more than a mark, else `valid`."""
        if any(doubt.void for doubt in self.doubts):
            return "void"
        return "doubtful" if any(not doubt.mark for doubt in self.doubts) else "valid"

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of its warnings."""
        return tuple(doubt.code for doubt in self.doubts)

    @property
    def judged_row(self) -> PointRow:
        """Return the row as it is stored: with the verdict and the codes of the doubts."""
        return replace(self.row, verdict=self.verdict, doubts=self.codes)


@dataclass(frozen=True, kw_only=True)
class QualityRecord:
    """One graded answer: a row of quality.parquet.

    `benchmark` is the scorer's name, followed by the task for a harness. `correct` is null without an answer; `outcome` and
    `error` say why. `point` is the point that the answer belongs to, null for a question asked after the load. `detail` is
    JSON of the scorer. `item_digest` distinguishes questions of the same id from other files or with other examples.
    `cache_error` says why the prefix cache could not be emptied before a question that was asked before; null otherwise.
    `thinking` is null for an answer without; `reasoning` is the thinking that is not part of `answer`.
    """

    run_id: str
    benchmark: str
    task: str | None
    item_id: str
    item_digest: str
    point: str | None
    concurrency: int | None
    rate: float | None
    correct: bool | None
    score: float | None
    extracted: str | None
    reference: str
    answer: str
    prompt: str
    note: str | None
    detail: str | None
    outcome: Outcome
    http_status: int | None
    error: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    sent_ns: int | None
    ended_ns: int | None
    latency_ms: float | None
    method: str
    api: str
    shots: int
    seed: int
    max_tokens: int
    emulated: bool
    cache_error: str | None = None
    thinking: Thinking | None = None
    reasoning: str | None = None


@dataclass(frozen=True, kw_only=True)
class QualitySummary:
    """The result of a benchmark at one load. Shares are between 0 and 1.

    `accuracy` is `right` / `n`, where `n` counts the questions that were answered and graded; `low` and `high` are its 95%
    interval (Wilson). `unanswered` requests failed, or their answers ended inside their thinking (`unfinished_thinking`);
    `unread` answers have nothing to grade and count as wrong. `score` is the mean of a graded measure; the interval is its own
    where nothing is right or wrong. `right_per_s` are right answers a second while questions were in flight: goodput by
    content. `details` are the scorer's numbers for each answer, averaged, or summed for tokens and costs. `means` describes
    what `accuracy` is the share of. `with_thinking` answers had thinking, finished or not.
    """

    benchmark: str
    method: str
    point: str | None
    concurrency: int | None
    rate: float | None
    n: int
    right: int
    unanswered: int
    unread: int
    accuracy: float | None
    score: float | None
    low: float | None
    high: float | None
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    output_tokens_mean: float | None
    seconds: float
    answers_per_s: float | None
    right_per_s: float | None
    emulated: bool
    details: Mapping[str, float] = field(default_factory=dict)
    means: str = "right"
    with_thinking: int = 0
    unfinished_thinking: int = 0
    doubts: tuple[Doubt, ...] = ()

    @property
    def measure(self) -> str:
        """Description of the figure to show."""
        return "mean score" if self.accuracy is None else self.means

    @property
    def at(self) -> str:
        """The load of the questions as text."""
        return f"rate {self.rate:g}/s" if self.rate is not None else f"concurrency {self.concurrency}"

    @property
    def value(self) -> float | None:
        """The figure to show: the accuracy, else the mean score."""
        return self.score if self.accuracy is None else self.accuracy


RunStatus = Literal["finished", "failed", "interrupted", "running"]


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How a run ended. `error` is the line shown to the user, `failure` its kind. `search` is the result of a search for a
    level as plain data; None without a search."""

    run_id: str
    status: RunStatus
    error: str | None = None
    failure: FailureKind | None = None
    points: tuple[Point, ...] = field(default_factory=tuple)
    search: dict[str, Any] | None = None
    quality: tuple[QualitySummary, ...] = ()

    @property
    def exit_code(self) -> int:
        """What the command returns after this run: 0 when it finished."""
        return exit_code_of(self.status, self.failure)


def exit_code_of(status: str, failure: FailureKind | None) -> int:
    """Return the exit code for the status and failure of a run, as stored: 0 when it finished."""
    return 0 if status == "finished" else (failure or FailureKind.OTHER).exit_code
