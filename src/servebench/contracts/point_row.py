"""The columns of points.csv and points.parquet, one row a point.

`PointRow` is the only definition of these columns: their order, names, types, units, meaning, what they are called, which
direction is better and where they are shown. `measure.points` explains which requests count for which number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from servebench.contracts.columns import Column, column, columns_of
from servebench.contracts.level import Level

Verdict = Literal["valid", "doubtful", "void"]
Screen = Literal["run", "show", "report", "chart", "dashboard", "mlflow"]
"""Where columns are shown: the points of a run when it ends, of `show` and of the report, what a chart says of a point, the
dashboard's list of runs, and MLflow's charts of a study."""
SCREENS: Mapping[Screen, str] = {
    "run": """requests_ok requests_failed output_throughput_tok_s ttft_ms_p50 ttft_ms_p99 ttft_ms_p99_all itl_ms_mean itl_ms_p99
        tpot_ms_mean e2e_ms_p50 e2e_ms_p99_all jobs_per_h job_s_p50 input_throughput_tok_s input_throughput_texts_s""",
    "show": """requests_ok requests_failed output_throughput_tok_s goodput_req_s ttft_ms_p50 ttft_ms_p99 itl_ms_mean itl_ms_p99
        tpot_ms_mean e2e_ms_p50 jobs_per_h job_s_p50 job_s_p90 input_throughput_tok_s input_throughput_texts_s""",
    "report": """requests_ok requests_failed output_throughput_tok_s output_tok_s_per_w request_throughput_req_s goodput_req_s
        ttft_ms_p50 ttft_ms_p99 ttft_ms_p99_all itl_ms_mean itl_ms_p99 tpot_ms_mean e2e_ms_p50 e2e_ms_p99 e2e_ms_p99_all
        prefix_cache_hit_rate prefix_cache_hit_rate_ideal prefix_cache_hit_rate_asked json_compliance
        json_compliance_unconstrained energy_j_per_token cost_usd_per_mtok cost_usd_per_mgood needle_recall jobs jobs_per_h
        jobs_per_gpu_h job_s_p50 job_s_p90 input_throughput_tok_s input_throughput_texts_s server_age_s""",
    "chart": """requests_ok requests_failed output_throughput_tok_s goodput_req_s ttft_ms_p50 ttft_ms_p99 tpot_ms_p50 tpot_ms_p99
        e2e_ms_p50 e2e_ms_p99""",
    "dashboard": """output_throughput_tok_s output_tok_s_per_w ttft_ms_p50 ttft_ms_p99 tpot_ms_mean energy_j_per_token
        cost_usd_per_mtok cost_usd_per_mgood""",
    "mlflow": """requests_failed output_throughput_tok_s goodput_req_s ttft_ms_p50 ttft_ms_p99 itl_ms_mean tpot_ms_mean e2e_ms_p50
        prefix_cache_hit_rate json_compliance energy_j_per_token cost_usd_per_mtok cost_usd_per_mgood jobs_per_h""",
}
"""The columns that each shows, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRow:
    """One load level of a run. What is unknown is None, never 0.

    `row[name]` reads a column by name. `extra` holds columns that this version does not know, from files of other versions.
    """

    run_id: str = column("", "The run, as `study/run`.", default="")
    engine: str = column("", "Name of the engine.", default="")
    engine_version: str | None = column("", "Version that the engine reports.")
    launch: str = column("", "How the engine was started: process, docker, attach, emulated or simulated.", default="")
    model: str = column("", "Name of the model.", default="")
    gpu: str = column("", "Name of the GPU in the config; `none` without one.", default="")
    gpu_count: int | None = column("", "Number of GPUs the engine uses.")
    workload: str = column("", "Name of the workload.", default="")
    concurrency: int | None = column("", "Requests kept in flight; null for a load given as a rate.")
    rate: float | None = column("req/s", "Requests sent a second; null for a load given as a concurrency.")
    repeat: int = column("", "Which repeat of the level this is, from 0.", default=0)
    requests_planned: int | None = column("", "Requests the point was meant to send.")
    requests_ok: int | None = column(
        "", "Requests that were answered completely.", title="requests", heading="ok", better="higher"
    )
    requests_failed: int | None = column(
        "",
        "Requests that failed; those abandoned on purpose are not counted.",
        title="failed requests",
        heading="fail",
        better="lower",
    )
    window_s: float | None = column("s", "Length of the measurement window, without what is left out.")
    output_throughput_tok_s: float | None = column(
        "tok/s", "Output tokens that arrived inside the window, a second.", title="output throughput"
    )
    output_throughput_whole_run_tok_s: float | None = column(
        "tok/s",
        "Output tokens a second from the first request sent to the last one ended, as other tools report it.",
        title="output throughput of the whole run",
        heading="output throughput of the whole run",
    )
    request_throughput_req_s: float | None = column(
        "req/s",
        "Ok requests a second, each by the share of its content events inside the window.",
        title="request throughput",
    )
    goodput_req_s: float | None = column(
        "req/s",
        "Ok requests that met every limit of the SLO, a second.",
        title="requests within the SLO",
        heading="req/s in SLO",
    )
    ttft_ms_mean: float | None = column("ms", "Mean time to first token (TTFT).")
    ttft_ms_p50: float | None = column("ms", "Median time to first token.")
    ttft_ms_p90: float | None = column("ms", "90th percentile of time to first token.")
    ttft_ms_p95: float | None = column("ms", "95th percentile of time to first token.")
    ttft_ms_p99: float | None = column("ms", "99th percentile of time to first token.")
    ttft_ms_min: float | None = column("ms", "Shortest time to first token.")
    ttft_ms_max: float | None = column("ms", "Longest time to first token.")
    ttft_ms_n: int | None = column("", "Requests with a time to first token.")
    itl_ms_mean: float | None = column("ms", "Mean inter-token latency (ITL): the gap between two content events.")
    itl_ms_p50: float | None = column("ms", "Median inter-token latency.")
    itl_ms_p90: float | None = column("ms", "90th percentile of inter-token latency.")
    itl_ms_p95: float | None = column("ms", "95th percentile of inter-token latency.")
    itl_ms_p99: float | None = column("ms", "99th percentile of inter-token latency.")
    itl_ms_min: float | None = column("ms", "Shortest inter-token latency.")
    itl_ms_max: float | None = column("ms", "Longest inter-token latency.")
    itl_ms_n: int | None = column("", "Gaps between content events, over all requests.")
    tpot_ms_mean: float | None = column("ms", "Mean time per output token (TPOT) after the first, per request.")
    tpot_ms_p50: float | None = column("ms", "Median time per output token.")
    tpot_ms_p90: float | None = column("ms", "90th percentile of time per output token.")
    tpot_ms_p95: float | None = column("ms", "95th percentile of time per output token.")
    tpot_ms_p99: float | None = column("ms", "99th percentile of time per output token.")
    tpot_ms_min: float | None = column("ms", "Shortest time per output token.")
    tpot_ms_max: float | None = column("ms", "Longest time per output token.")
    tpot_ms_n: int | None = column("", "Requests with a time per output token (two tokens or more).")
    e2e_ms_mean: float | None = column("ms", "Mean end-to-end latency (E2E): from sent to the last content event.")
    e2e_ms_p50: float | None = column("ms", "Median end-to-end latency.")
    e2e_ms_p90: float | None = column("ms", "90th percentile of end-to-end latency.")
    e2e_ms_p95: float | None = column("ms", "95th percentile of end-to-end latency.")
    e2e_ms_p99: float | None = column("ms", "99th percentile of end-to-end latency.")
    e2e_ms_min: float | None = column("ms", "Shortest end-to-end latency.")
    e2e_ms_max: float | None = column("ms", "Longest end-to-end latency.")
    e2e_ms_n: int | None = column("", "Requests with an end-to-end latency.")
    lateness_ms_p99: float | None = column("ms", "99th percentile of how late the client sent requests.")
    prefix_cache_hit_rate: float | None = column(
        "0..1",
        "Share of prompt tokens that the engine found in its prefix cache.",
        title="prefix cache hits",
        heading="cache hits",
        better="higher",
    )
    json_compliance: float | None = column(
        "0..1", "Share of answers with an enforced schema that fit it.", title="valid JSON", better="higher"
    )
    energy_j_per_token: float | None = column(
        "J/token", "Energy used inside the window per output token.", title="energy"
    )
    cost_usd_per_mtok: float | None = column(
        "$/M tokens", "Price of the GPUs for a million output tokens.", title="price of output tokens"
    )
    emulated: bool = column("", "Whether the engine was emulated or simulated.", default=False)
    verdict: Verdict | None = column("", "Whether the numbers can be believed: valid, doubtful or void.")
    doubts: tuple[str, ...] = column("", "Codes of the warnings about the point; in CSV separated by `;`.", default=())
    label: str = column("", "What the run is called in its study, in words that say how it differs.", default="")
    ttft_from_schedule_ms_p50: float | None = column(
        "ms", "Median TTFT counted from when the request was scheduled.", title="TTFT p50 from schedule"
    )
    ttft_from_schedule_ms_p99: float | None = column(
        "ms", "99th percentile of TTFT counted from when the request was scheduled.", title="TTFT p99 from schedule"
    )
    ttfo_ms_mean: float | None = column("ms", "Mean time to first output: the first content that is not reasoning.")
    connect_ms_mean: float | None = column("ms", "Mean time to open a connection.")
    input_tokens_mean: float | None = column("tokens", "Mean prompt tokens of a request.")
    output_tokens_mean: float | None = column("tokens", "Mean output tokens of a request.")
    input_tokens_planned_mean: float | None = column(
        "tokens", "The same by the workload's count; null where one is not known."
    )
    output_tokens_asked_mean: float | None = column(
        "tokens", "Mean output tokens that these requests asked for at most; null where one has no such limit."
    )
    hidden_tokens_mean: float | None = column(
        "tokens", "Mean reasoning tokens of a request that usage counts and nobody sent; in no other column."
    )
    output_tokens_total: int | None = column("tokens", "Output tokens of all ok requests.")
    prefix_cache_hit_rate_ideal: float | None = column(
        "0..1",
        "The best hit rate that a prefix cache could have.",
        title="prefix cache hits at best",
        heading="hits at best",
    )
    json_compliance_low: float | None = column("0..1", "Lower end of the 95% interval (Wilson) of json_compliance.")
    json_compliance_high: float | None = column("0..1", "Upper end of the 95% interval (Wilson) of json_compliance.")
    json_compliance_n: int | None = column("", "Answers with an enforced schema.")
    json_compliance_unconstrained: float | None = column(
        "0..1",
        "As json_compliance, for requests with the schema only in the prompt.",
        title="unconstrained JSON",
        better="higher",
    )
    constraint_ttft_ms: float | None = column("ms", "Mean extra TTFT of a constrained request over its free twin.")
    constraint_tpot_ms: float | None = column("ms", "Mean extra TPOT of a constrained request over its free twin.")
    needle_recall: float | None = column(
        "0..1",
        "Share of the facts hidden in long prompts that the answers contain.",
        title="needles found",
        heading="needles",
        better="higher",
    )
    average_in_flight: float | None = column("", "Mean number of requests in flight over the window.")
    level_reached: bool | None = column("", "Whether the requested concurrency was ever in flight.")
    events: int | None = column("", "Content events of all ok requests.")
    events_merged: int | None = column("", "Content events that arrived in one read with an earlier one.")
    lateness_ms_mean: float | None = column("ms", "Mean of how late the client sent requests.")
    client_cpu_share: float | None = column("0..1", "CPU cores used by each worker process of the client.")
    loop_lag_ms_p99: float | None = column("ms", "99th percentile of how late the client's loop woke up.")
    clock_step_ms: float | None = column("ms", "How far the wall clock was stepped during the point.")
    stamp_source: str | None = column("", "Who stamped what arrived: `kernel`, or `user` for the client itself.")
    window_start_ns: int | None = column("ns", "Start of the measurement window, since the epoch.")
    window_end_ns: int | None = column("ns", "End of the measurement window, since the epoch.")
    point: str = column("", "Name of the point in the run: level, repeat and attempt, such as `c8-r0-a1`.", default="")
    cache_state: str | None = column("", "State of the prefix cache at the start: as_is, warm, salted or reset.")
    output_throughput_tok_s_low: float | None = column("tok/s", "Lower end of the 95% interval of output throughput.")
    output_throughput_tok_s_high: float | None = column("tok/s", "Upper end of the 95% interval of output throughput.")
    output_throughput_n: int | None = column("", "Requests behind the throughput where time is left out.")
    ttft_ms_mean_low: float | None = column("ms", "Lower end of the 95% interval of mean TTFT.")
    ttft_ms_mean_high: float | None = column("ms", "Upper end of the 95% interval of mean TTFT.")
    ttft_ms_p50_low: float | None = column("ms", "Lower end of the 95% interval of median TTFT.")
    ttft_ms_p50_high: float | None = column("ms", "Upper end of the 95% interval of median TTFT.")
    ttft_ms_p95_low: float | None = column("ms", "Lower end of the 95% interval of TTFT p95.")
    ttft_ms_p95_high: float | None = column("ms", "Upper end of the 95% interval of TTFT p95.")
    ttft_ms_p99_low: float | None = column("ms", "Lower end of the 95% interval of TTFT p99.")
    ttft_ms_p99_high: float | None = column("ms", "Upper end of the 95% interval of TTFT p99.")
    ttfo_ms_mean_low: float | None = column("ms", "Lower end of the 95% interval of mean TTFO.")
    ttfo_ms_mean_high: float | None = column("ms", "Upper end of the 95% interval of mean TTFO.")
    itl_ms_mean_low: float | None = column("ms", "Lower end of the 95% interval of mean ITL.")
    itl_ms_mean_high: float | None = column("ms", "Upper end of the 95% interval of mean ITL.")
    itl_ms_p99_low: float | None = column("ms", "Lower end of the 95% interval of ITL p99.")
    itl_ms_p99_high: float | None = column("ms", "Upper end of the 95% interval of ITL p99.")
    tpot_ms_mean_low: float | None = column("ms", "Lower end of the 95% interval of mean TPOT.")
    tpot_ms_mean_high: float | None = column("ms", "Upper end of the 95% interval of mean TPOT.")
    tpot_ms_p50_low: float | None = column("ms", "Lower end of the 95% interval of median TPOT.")
    tpot_ms_p50_high: float | None = column("ms", "Upper end of the 95% interval of median TPOT.")
    e2e_ms_mean_low: float | None = column("ms", "Lower end of the 95% interval of mean E2E latency.")
    e2e_ms_mean_high: float | None = column("ms", "Upper end of the 95% interval of mean E2E latency.")
    e2e_ms_p50_low: float | None = column("ms", "Lower end of the 95% interval of median E2E latency.")
    e2e_ms_p50_high: float | None = column("ms", "Upper end of the 95% interval of median E2E latency.")
    e2e_ms_p95_low: float | None = column("ms", "Lower end of the 95% interval of E2E latency p95.")
    e2e_ms_p95_high: float | None = column("ms", "Upper end of the 95% interval of E2E latency p95.")
    lock_step: float | None = column(
        "0..1", "How far the streams send in step: 0 at random times, 1 all at once in each round of answers."
    )
    slo_requests: int | None = column("", "Requests tested against the SLO.")
    requests_refused: int | None = column(
        "",
        "Failed requests that the server refused: HTTP 429, 503, 529, or the same as an error inside HTTP 200.",
        better="lower",
    )
    slo_good: int | None = column("", "Requests that met every limit of the SLO.")
    slo_design_effect: float | None = column(
        "", "Mean size of the burst that a request which missed the SLO belongs to; null without such requests."
    )
    kept_up: float | None = column(
        "0..1", "Share of the arrivals at a rate that did not stay in flight: 1, or less as the queue grew."
    )
    client_error_ms_ttft: float | None = column("ms", "The client's own error in TTFT, by its self-check (p99).")
    client_error_ms_itl: float | None = column("ms", "The client's own error in ITL, by its self-check (p99).")
    throughput_trend: float | None = column(
        "",
        "The likeliest change for good of output throughput in the window, relative to before (0.1: it rose by 10%).",
    )
    throughput_trend_p: float | None = column(
        "", "Probability that throughput only wandered, with even odds beforehand."
    )
    itl_trend: float | None = column("", "The likeliest change for good of mean ITL in the window, relative to before.")
    itl_trend_p: float | None = column("", "Probability that ITL only wandered, with even odds beforehand.")
    ttft_trend: float | None = column("", "The likeliest change for good of TTFT in the window, relative to before.")
    ttft_trend_p: float | None = column("", "Probability that TTFT only wandered, with even odds beforehand.")
    connections_failed: int | None = column("", "Connections that were refused or took too long.")
    receive_queue_bytes_max: int | None = column("bytes", "Most bytes that waited in the kernel after a read.")
    server_excess_requests_mean: float | None = column(
        "", "Mean number of requests that the engine held beyond those in flight."
    )
    cancelled_freed: bool | None = column("", "Whether the engine stopped working on abandoned requests.")
    cost_usd_per_mgood: float | None = column(
        "$/M requests within the SLO",
        "Price of the GPUs for a million requests that met the SLO.",
        title="price of requests",
        heading="$/M req in SLO",
        better="lower",
    )
    output_tok_s_per_w: float | None = column(
        "tok/s/W", "Output throughput per watt: output tokens per joule.", title="throughput per watt"
    )
    ttft_ms_p50_all: float | None = column(
        "ms", "Median TTFT with failed requests counted as infinitely slow.", title="TTFT p50 with failed"
    )
    ttft_ms_p99_all: float | None = column(
        "ms", "TTFT p99 with failed requests counted as infinitely slow.", title="TTFT p99 with failed"
    )
    e2e_ms_p50_all: float | None = column(
        "ms", "Median E2E latency with failed requests counted as infinitely slow.", title="E2E p50 with failed"
    )
    e2e_ms_p99_all: float | None = column(
        "ms", "E2E latency p99 with failed requests counted as infinitely slow.", title="E2E p99 with failed"
    )
    server_prefix_cache_hit_rate: float | None = column("0..1", "Prefix cache hit rate by the engine's own counters.")
    server_running_mean: float | None = column("", "Mean number of requests that the engine was working on.")
    server_waiting_mean: float | None = column("", "Mean number of requests in the engine's queue.")
    server_waiting_max: float | None = column("", "Most requests in the engine's queue.")
    server_kv_cache_usage_max: float | None = column("0..1", "Largest share of the KV cache in use.")
    server_preemptions: float | None = column("", "Requests that the engine put back to make room.")
    server_queue_time_ms_mean: float | None = column("ms", "Mean time that requests waited in the engine's queue.")
    server_generation_tokens: float | None = column("tokens", "Tokens generated, by the engine's own counter.")
    spec_acceptance_rate: float | None = column("0..1", "Share of drafted tokens that were accepted.")
    engine_cpu_cores_mean: float | None = column("cores", "Mean CPU use of the engine's processes.")
    front_end_cores_mean: float | None = column(
        "cores", "Mean CPU use of the engine's first process, which takes the requests, if it has others."
    )
    engine_memory_gb_max: float | None = column("GB", "Most resident memory of the engine's processes.")
    gpu_power_w_mean: float | None = column("W", "Mean electrical power of the GPUs together.")
    gpu_utilization_mean: float | None = column("0..1", "Mean share of time in which the GPUs had work.")
    gpu_memory_gb_max: float | None = column("GB", "Most memory in use on the GPUs together.")
    gpu_sm_clock_mhz_mean: float | None = column("MHz", "Mean clock of the GPUs' processors.")
    energy_j: float | None = column("J", "Energy used inside the window.")
    energy_source: str | None = column("", "Where energy_j comes from, such as `nvml_counter` or `rapl`.")
    telemetry_samples: int | None = column("", "Telemetry samples taken during the point.")
    disturbed_s: float | None = column(
        "s", "How long others took the machine inside the window; null where that was not sampled."
    )
    disturbances: tuple[str, ...] = column(
        "", "Who took the machine, how much and when, in seconds from the first request.", default=()
    )
    disturbed_by: str | None = column(
        "", "JSON: who took most of the machine inside the window (who, pid), what (took) and for how many seconds."
    )
    left_out_ns: tuple[int, ...] = column(
        "ns", "Stretches of the window that do not count: start and end of each, since the epoch.", default=()
    )
    not_counted_ns: tuple[int, ...] = column(
        "ns", "Stretches of the window, those and more, in which requests were sent that do not count.", default=()
    )
    start_id: str | None = column(
        "", "The start of the engine that served the point; points with the same id share one start. Null: unknown."
    )
    jobs: int | None = column(
        "", "Jobs (an agent with its sub-agents, or a conversation) all of whose requests were answered."
    )
    jobs_per_h: float | None = column(
        "jobs/h", "Jobs an hour: each request answered inside the window counts by its share of its job.", title="jobs"
    )
    jobs_per_gpu_h: float | None = column("jobs/GPU-h", "Jobs an hour for each GPU.", title="jobs per GPU")
    job_s_p50: float | None = column(
        "s",
        "Median time of a job from its first request to its last answer, pauses included.",
        title="job p50",
        heading="job s",
        better="lower",
    )
    job_s_p90: float | None = column("s", "90th percentile of the time of a job.", title="job p90", better="lower")
    input_throughput_tok_s: float | None = column(
        "tok/s", "Tokens of the texts that were embedded or ranked, per second.", title="tokens in", heading="tokens in"
    )
    input_throughput_texts_s: float | None = column(
        "texts/s", "Texts that were embedded or ranked, per second.", title="texts"
    )
    prefix_cache_hit_rate_asked: float | None = column(
        "0..1",
        "The hit rate that workload.hit_rate asks for.",
        title="prefix cache hits asked for",
        heading="hits asked for",
    )
    server_age_s: float | None = column(
        "s",
        "From the start of the server to the point's first request; null for an attached server.",
        title="age of the server",
    )
    server_requests_before: int | None = column(
        "", "Requests of the load, warm-ups included, that the server had got before the point; null as above."
    )
    interval_prior: str | None = column(
        "",
        "What shows the engine's wander: `flat` (nothing), or a long point (`run/point`) of this engine and machine.",
    )
    ended_by: str | None = column("", "Why a point with `load.until` ended: precise, out_of_reach, time or requests.")
    warmup_cut_s: float | None = column(
        "s", "How much was cut from the front of the window because the engine was still changing."
    )
    slices: int | None = column(
        "", "How many slices the point was measured in, in turns with another engine; null: none."
    )
    slice_group: str | None = column(
        "", "What the points share that were measured in turns with each other, slice by slice."
    )
    slice_values: str | None = column(
        "", "JSON: the values of compared columns in each slice, in order; null where a slice has none."
    )
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """Return the value of a column by name. Raises KeyError for an unknown column."""
        if name in POINT_COLUMNS:
            return getattr(self, name)
        return self.extra[name]

    def get(self, name: str, /, default: Any = None) -> Any:
        """Return the value of a column by name, or `default` where it is null or unknown."""
        value = getattr(self, name) if name in POINT_COLUMNS else self.extra.get(name)
        return default if value is None else value

    @property
    def level(self) -> Level:
        """The load level."""
        return Level(self.concurrency, self.rate)

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """Start and end of the measurement window; None without one."""
        if self.window_start_ns is None or self.window_end_ns is None:
            return None
        return self.window_start_ns, self.window_end_ns

    @property
    def left_out(self) -> list[tuple[int, int]]:
        """The stretches of the window that do not count."""
        return list(zip(self.left_out_ns[::2], self.left_out_ns[1::2], strict=False))

    @property
    def not_counted(self) -> list[tuple[int, int]]:
        """The stretches of the window in which requests were sent that do not count; empty in rows of earlier versions, which
        have only `left_out`."""
        return list(zip(self.not_counted_ns[::2], self.not_counted_ns[1::2], strict=False))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the row with these values; a column that is missing or null is null. Unknown columns go to `extra`."""
        known: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for name, cell in values.items():
            value, convert = plain(cell), _CONVERTERS.get(name)
            if convert is None:
                extra[str(name)] = value
            elif value is not None:
                known[name] = convert(value)
        return cls(**known, extra=extra)

    def as_dict(self) -> dict[str, Any]:
        """Return all columns in order as plain values, those of `extra` last."""
        row = {name: getattr(self, name) for name in POINT_COLUMNS}
        return {name: list(cell) if isinstance(cell, tuple) else cell for name, cell in row.items()} | dict(self.extra)


POINT_COLUMNS: Mapping[str, Column] = {one.name: one for one in columns_of(PointRow)}
"""The columns by name, in order."""

_CONVERT = {"str": str, "int": int, "float": float, "bool": bool, "list[str]": tuple, "list[int]": tuple}
_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {name: _CONVERT[one.kind] for name, one in POINT_COLUMNS.items()}


def columns_shown(screen: Screen) -> list[Column]:
    """Return the columns of points that a screen shows, in their order."""
    return [POINT_COLUMNS[name] for name in SCREENS[screen].split()]


def plain(value: Any) -> Any:
    """Return a cell of a data frame as a plain value: NumPy scalars as Python's, arrays as lists, NaN as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return None if isinstance(value, float) and value != value else value
