"""The table of all warnings: what each code means, what to do about it, and what follows from it.

To add a warning, add it here, then issue it with `WarningType.issue` where it is detected (for a point: a check in
`warnings.point`). Codes are stored in the column `doubts`, so they never change. Nothing else names what a code leads to.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from servebench.analysis.warnings import bounds
from servebench.analysis.warnings.bounds import Bound
from servebench.contracts.results import Doubt

SPEED = ("throughput", "ttft", "tpot", "itl", "e2e")
AFFECTS_ALL = (*SPEED, "failed", "cost")
UNKNOWN = "unknown warning: it was written by another version of servebench"


@dataclass(frozen=True, kw_only=True)
class WarningType:
    """A kind of warning. A `void` one makes its point void, a `mark` leaves the verdict alone, others make it doubtful.

    `affects` names the metrics that may be wrong: throughput, ttft, tpot, itl, e2e, failed, cost, quality; `bound` says by how
    much at most, and without it nobody knows. `wide` says than what an interval is wider, and which keys make it narrower.

    A point that is `cut_off` is measured again by `servebench resume`; a warning that a `longer` measurement may settle by
    `resume --better`, but not where the `engine_gone` is to blame. An `unusable` point says nothing about its level, so that a
    search leaves it out. `leaves_out`: a mark that belongs on the first screen, because it says what the numbers leave out.
    `of_all`: it is said once of all points and not of each.
    """

    code: str
    meaning: str
    remedy: str
    void: bool = False
    mark: bool = False
    affects: tuple[str, ...] = SPEED
    bound: Bound | None = None
    wide: tuple[str, str] | None = None
    cut_off: bool = False
    longer: bool = False
    engine_gone: bool = False
    unusable: bool = False
    leaves_out: bool = False
    of_all: bool = False

    def issue(
        self, message: str, *, remedy: str | None = None, void: bool | None = None, mark: bool | None = None
    ) -> Doubt:
        """Return this warning with the figures of one case; `remedy`, `void` and `mark` replace the general ones."""
        return Doubt(
            code=self.code,
            message=message,
            remedy=self.remedy if remedy is None else remedy,
            void=self.void if void is None else void,
            mark=self.mark if mark is None else mark,
        )


CATALOG: dict[str, WarningType] = {}
"""Every warning by its code, in the order in which a point lists them."""


def _define(code: str, meaning: str, remedy: str, **more: Any) -> WarningType:
    CATALOG[code] = WarningType(code=code, meaning=meaning, remedy=remedy, **more)
    return CATALOG[code]


_define_quality = partial(_define, affects=("quality",))
_define_end = partial(_define, affects=AFFECTS_ALL, void=True, cut_off=True, unusable=True)
_define_longer = partial(_define, longer=True)
_define_mark = partial(_define, mark=True)


def type_of(code: str) -> WarningType:
    """Return the warning with this code; one of another version of servebench may concern everything."""
    return CATALOG.get(code) or WarningType(code=code, meaning=UNKNOWN, remedy="", affects=AFFECTS_ALL)


def explain(code: str) -> str:
    """Return what a stored code means and what to do about it."""
    found = type_of(code)
    return "; ".join(filter(None, (found.meaning, found.remedy)))


def is_wide(codes: Iterable[str]) -> bool:
    """Return whether a point with these warnings has a wide interval."""
    return any(type_of(code).wide for code in codes)


def is_usable(codes: Iterable[str]) -> bool:
    """Return whether a point with these warnings says something about its level."""
    return not any(type_of(code).unusable for code in codes)


def trust_word(verdict: str, codes: Iterable[str]) -> str:
    """Return how far to trust a point in one or two words: its verdict, and whether its interval is wide."""
    return f"{verdict}, wide" if verdict != "void" and is_wide(codes) else verdict


LEVEL_NOT_REACHED = _define_longer(
    "level_not_reached",
    "the requested load was never reached, so the numbers belong to a lower load",
    "send more requests per point (load.requests=auto or load.duration_s); check whether requests failed at once or late",
    void=True,
    affects=AFFECTS_ALL,
)
LOCK_STEP = _define_longer(
    "lock_step",
    "the streams sent their requests all at once, round after round, so prompts waited for each other",
    "set load.stagger=true and load.warmup_requests above 0 (the defaults) with three requests a stream or more; else "
    "measure TTFT at a rate of arrivals (load.rate)",
)
TOO_FEW_REQUESTS = _define_longer(
    "too_few_requests",
    "every number rests on few requests, and throughput or TTFT has no interval",
    "send more requests per point (load.requests): 30 in the window for a mean, 100 for a p99",
    bound=bounds.too_few_requests,
)
TOO_SHORT = _define_longer(
    "too_short",
    "the window is shorter than 4.5 s, so one pause changes its throughput",
    "set load.duration_s or more load.requests; load.warmup_s must be shorter than the point",
)
MACHINE_BUSY = _define_longer(
    "machine_busy",
    "others took the machine from load and engine for too much of the point",
    "end the named processes, and measure the point again",
    bound=partial(bounds.machine_busy, left_out="machine_shared"),
)
MACHINE_SHARED = _define_mark(
    "machine_shared",
    "a stretch in which others took the machine is left out of all estimates",
    "",
    leaves_out=True,
)
NOT_STATIONARY = _define_longer(
    "not_stationary",
    "the engine was not steady in the window, in throughput, ITL, TTFT or the queue of an open loop",
    "measure again and longer (load.duration_s); look at telemetry.parquet and engine.log",
    bound=bounds.not_stationary,
)
IMPRECISE = _define(
    "imprecise",
    "the throughput's confidence interval is wider than ±25%",
    "measure longer (load.requests, load.duration_s) on an idle machine: four times as long halves the interval",
    mark=True,  # the interval carries it: what is concluded from the point takes that into account
    wide=("±25%", "load.duration_s or load.requests"),
)
NOT_PRECISE = _define_mark(
    "not_precise",
    "the point ended before it was as precise as load.until asks, or had load.min_requests",
    "use the numbers with their intervals; raise load.max_duration_s for narrower ones",
    wide=("load.until asks", "load.max_duration_s"),
)
ERRORS = _define(
    "errors",
    "requests failed, and the latencies are those of the requests that succeeded",
    "see the engine's log, lower the load, or raise load.timeout_s",
    bound=bounds.failed_requests,
    affects=AFFECTS_ALL,
)
RATE_LIMITED = _define(
    "rate_limited",
    "the server refused requests (HTTP 429, 503, 529, or so inside HTTP 200): the numbers describe its limit, not its speed",
    "lower the load (load.concurrency, load.rate), or have the limit raised",
    bound=bounds.failed_requests,
    affects=AFFECTS_ALL,
)
ENGINE_DIED = _define_end(
    "engine_died",
    "the engine exited during the point",
    "read the end of engine.log; if it is out of memory, lower engine.gpu_memory_fraction, engine.max_num_seqs or "
    "engine.max_model_len",
    engine_gone=True,
)
WORKER_DIED = _define_end(
    "worker_died",
    "a load worker process died",
    "check whether the kernel killed it for lack of memory (dmesg), and measure the point again",
)
NO_PROGRESS = _define_end(
    "no_progress",
    "the engine was up but sent no data, so the point was stopped",
    "read engine.log; lower load.timeout_s to detect this sooner",
)
NOT_ANSWERING = _define_end(
    "not_answering",
    "the server stopped answering during the point",
    "read the server's log, and measure the point again once it answers (servebench resume)",
    engine_gone=True,
)
INTERRUPTED = _define(
    "interrupted",
    "the point was stopped before its end",
    "measure the point again",
    cut_off=True,
    unusable=True,
    affects=AFFECTS_ALL,
)
CLIENT_BOUND = _define_longer(
    "client_bound",
    "the client may have limited what was measured",
    "leave a core free for the client, or drive the load from another machine (launch=attach)",
    bound=bounds.client_bound,
)
CLOCK_STEPPED = _define_longer(
    "clock_stepped",
    "the wall clock was set during the point, which shifts all later timestamps",
    "measure the point again once the clock is synchronized (chronyc tracking, timedatectl)",
    void=True,
    unusable=True,
    affects=AFFECTS_ALL,
)
TOKENS_DISAGREE = _define(
    "tokens_disagree",
    "token counts are missing or contradict each other",
    "make the server send usage in the stream (stream_options.include_usage) or set model.tokenizer; until then compare "
    "requests per second",
    affects=("throughput", "tpot"),
)
HIDDEN_TOKENS = _define_mark(
    "hidden_tokens",
    "the server counts reasoning that it did not send: TTFT contains its time, other numbers are of what was sent",
    "compare with other servers by E2E and requests per second",
)
SHORT_ANSWERS = _define(
    "short_answers",
    "answers do not have the requested length",
    "compare only with engines that obey workload.exact_output, or set it to false and compare per token",
    affects=("throughput", "tpot", "e2e"),
)
ANSWERS_CUT_OFF = _define(
    "answers_cut_off",
    "the longest answers were given up after their slice: E2E and answer lengths lack them",
    "set study.slices=never for E2E of such lengths",
    affects=("e2e",),
)
CACHE_CONTAMINATED = _define(
    "cache_contaminated",
    "the prefix cache had more than prompts share",
    "set workload.cache=cold or engine.prefix_caching=false, choose another workload.seed, or restart the engine",
    bound=bounds.cache_contaminated,
)
HIT_RATE_MISSED = _define(
    "hit_rate_missed",
    "the prefix cache found over 2 points more or less than workload.hit_rate asks for",
    "use longer prompts (workload.input_tokens=512 or more), workload.api=completions, engine.prefix_caching=true, more "
    "load.warmup_requests, and room in the cache",
)
CACHE_NOT_RESET = _define_mark(
    "cache_not_reset",
    "the engine could not empty its prefix cache",
    "let the engine empty its cache (vLLM: VLLM_SERVER_DEV_MODE=1); later points, and answers at a later "
    "quality.concurrency, may be faster by what earlier ones left in it",
)
PROMPT_SIZE_APPROXIMATE = _define(
    "prompt_size_approximate",
    "prompts were not sized with the served model's tokenizer",
    "set model.tokenizer, and read input_tokens_mean for the true length",
    bound=bounds.prompt_size_approximate,
)
MERGED_EVENTS = _define(
    "merged_events",
    "several events arrived in one read, so ITL is the time between reads",
    "compare TPOT in place of ITL; the engine sent several tokens at once, a proxy buffers, or the client was late",
    affects=("itl",),
)
NOT_STREAMED = _define(
    "not_streamed",
    "answers arrived all at once: their TTFT equals their E2E, and they have no ITL",
    "check whether the server or a proxy buffers answers or ignores `stream`; use only E2E and requests per second",
    affects=("ttft", "tpot", "itl"),
)
CANCELLED_NOT_FREED = _define(
    "cancelled_not_freed",
    "the engine kept working on requests that the client had cancelled",
    "check whether the engine or a proxy notices closed connections",
    bound=bounds.cancelled_not_freed,
)
TIMINGS_DO_NOT_ADD_UP = _define(
    "timings_do_not_add_up",
    "the engine's own times do not cover the time of its requests, or cover more",
    "do not read them as shares of the latency; look for missing time in the network, a proxy and the server's front end "
    "(network_ms, delivery_ms)",
    mark=True,  # the metrics rest on the client's stamps alone
    affects=(),
)
TIMINGS_MISSING = _define(
    "timings_missing",
    "the engine's own times are missing for many requests",
    "check that the server sends its spans to engine.spans_address (OTLP over HTTP, not gRPC), or keeps enough requests",
    mark=True,  # as above
    affects=(),
)
EMULATED = _define_mark(
    "emulated",
    "the engine was emulated or simulated: these numbers do not describe the real engine",
    "set launch=process, docker or attach to measure a real engine",
    of_all=True,
    affects=AFFECTS_ALL,
)
SUPPLY_EXHAUSTED = _define_longer(
    "supply_exhausted",
    "all prepared requests were used before the end of the point",
    "raise load.warmup_requests, so that the engine's speed is estimated better",
    affects=(),  # the window ends where the requests did
)
WRONG_GPU = _define(
    "wrong_gpu",
    "the configured GPU is not the one in this machine",
    "set gpu= and gpu.count= to the installed GPUs",
    affects=("cost",),
)
SCHEMA_NOT_ENFORCED = _define(
    "schema_not_enforced",
    "the engine does not enforce JSON schemas, so none was sent",
    "compare it with the unconstrained answers of other engines (json_compliance_unconstrained)",
)
FOREIGN = _define(
    "foreign",
    "measured by another tool, with its definitions and without servebench's checks",
    "measure it with servebench for a full comparison",
    affects=AFFECTS_ALL,
)
SAMPLE_TOO_SMALL = _define_quality(
    "sample_too_small",
    "the quality score rests on too few questions",
    "raise quality.items (all uses every question) or set quality.path to a larger file",
)
UNANSWERED = _define_quality(
    "unanswered",
    "questions got no answer; they count neither as right nor as wrong",
    "lower quality.concurrency or raise quality.timeout_s, and read the errors in quality.parquet",
)
UNFINISHED_THINKING = _define_quality(
    "unfinished_thinking",
    "answers ended inside their thinking; they count neither as right nor as wrong",
    "raise quality.max_tokens (workload.output_tokens for answers of the load), or have the model think less",
)
NOT_JUDGED = _define_quality(
    "not_judged",
    "answers could not be graded; they count neither as right nor as wrong",
    "read the column note in quality.parquet; usually the judge is down, slow or answers malformed text",
)
CUT_OFF = _define_quality(
    "cut_off",
    "answers reached the token limit and count as wrong",
    "raise quality.max_tokens (workload.output_tokens for answers of the load), and read some in quality.parquet",
)
UNREAD_ANSWERS = _define_quality(
    "unread_answers",
    "many answers contain nothing that can be graded and count as wrong",
    "read them in quality.parquet; a model that explains needs a higher quality.max_tokens",
)
AS_BY_CHANCE = _define_quality(
    "as_by_chance",
    "the score is no better than guessing, so damage by an engine would not show",
    "use a larger model, or quality=parity",
    mark=True,
)
