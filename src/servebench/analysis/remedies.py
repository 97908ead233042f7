"""What each doubt means and what to do about it, for those who find only its code on disk."""

from __future__ import annotations

REMEDIES: dict[str, str] = {
    "level_not_reached": "the asked load was never there, so the number belongs to a lower load; send more requests a "
    "point (load.requests=auto), and see whether requests failed at once or the client was late",
    "too_few_requests": "every number rests on few requests; send more a point (load.requests): 30 in the window for a "
    "mean, 100 for a p99",
    "too_short": "the window is under 5 s, and one pause moves its throughput; send more requests a point or set "
    "load.duration_s",
    "not_stationary": "the point changed while it was measured; warm up longer (load.warmup_s), and see whether the "
    "machine was busy or hot",
    "imprecise": "throughput has an interval of more than a quarter to each side; measure longer, on a machine that does nothing "
    "else: four times as long halves it",
    "errors": "requests failed, and latencies are those of the rest; look at engine.log, lower the load, or raise "
    "load.timeout_s",
    "engine_died": "the engine died during the point; read the last lines of engine.log: out of memory is the usual cause",
    "engine_restarted": "the engine's process was another one after the point; read engine.log and run it again",
    "no_progress": "the engine lived and sent nothing; read engine.log, and lower load.timeout_s to find out sooner",
    "worker_died": "the process that sent the load died; look at the machine's memory, and run it again",
    "interrupted": "the point was stopped before its end; run it again",
    "client_bound": "the client may have limited what was measured; leave a core free for it, or drive the load from "
    "another machine (launch=attach)",
    "clock_stepped": "the wall clock was stepped during the point; run it again once the clock is in step",
    "tokens_disagree": "the counts of tokens do not agree; ask the server for usage in the stream, and compare by "
    "requests a second until they do",
    "short_answers": "answers do not have the length asked for; compare only engines that hold workload.exact_output, "
    "or compare per token",
    "cache_contaminated": "prompts that are all different were found in the prefix cache; set workload.cache=cold or "
    "engine.prefix_caching=false, or give workload.seed a new value",
    "prompt_size_approximate": "prompts were sized by another tokenizer than the served model's; name it with "
    "model.tokenizer=, and read input_tokens_mean",
    "merged_events": "several tokens came in one read; compare TPOT instead of ITL",
    "not_streamed": "answers came all at once, so TTFT is E2E; see whether the server, or a proxy before it, buffers them",
    "emulated": "the engine was emulated; its numbers say nothing of a real one: set launch=process, docker or attach",
    "supply_exhausted": "the prompts that were made ready were used up; use more load.warmup_requests",
    "wrong_gpu": "the config says one GPU and the driver another; set gpu= to the one that is there",
    "unequal_settings": "what is compared was not set up equally; make the listed settings equal, or name the one that "
    "is compared with --varying",
    "sample_too_small": "the quality figure rests on too few questions; raise quality.items, or name a larger file with "
    "quality.path",
    "unanswered": "questions got no answer and count neither as right nor as wrong; lower quality.concurrency or raise "
    "quality.timeout_s, and read the errors in quality.parquet",
    "unread_answers": "many answers hold nothing that could be graded and count as wrong; read them in quality.parquet, and "
    "raise quality.max_tokens for a model that explains",
    "not_judged": "answers came and could not be judged; read note in quality.parquet: a judge that is down, slow or talks "
    "nonsense is the usual cause",
    "cut_off": "many answers ended at their length and count as wrong; raise quality.max_tokens (workload.output_tokens for the "
    "load's own), and read some in quality.parquet",
    "as_by_chance": "as many are right as guessing gets, so that an engine which spoils answers would not be seen; ask a "
    "larger model, or quality=parity",
    "schema_not_enforced": "the engine enforces no schema; compare it with the twins of others "
    "(json_compliance_unconstrained)",
    "cancelled_not_freed": "requests that the client gave up were worked on further; look for the engine's handling of "
    "clients that go away",
    "foreign": "another tool measured it: its definitions and its checks are not those of servebench",
}
"""By the code in the column `doubts`."""
