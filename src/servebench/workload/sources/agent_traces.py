"""Read recorded sessions of agents: the WEKA format (`hash_ids`), and a requests.parquet of servebench. Never text.

A WEKA trace (github.com/callanjfox/kv-cache-tester, docs/trace_replay_tester.md) is a JSON object of one job: `id`, `block_size`,
`hash_id_scope` and `requests`, each with its time `t` in seconds, the tokens `in` and `out`, and the `hash_ids` of its prompt's
blocks; `api_time` and `think_time` are how long the recorded answer and the pause since the answer before took. An entry of
`type` `subagent` has the `requests` of a sub-agent, which may have sub-agents too. A trace of `servebench record` has a line for
each request, with its session.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import Any

from servebench.contracts.settings import SECONDS_MAX, TOKENS_MAX
from servebench.util.bounded_file import parse_json, suffix_of
from servebench.util.bounded_parquet import read_parquet
from servebench.util.errors import ConfigError, reason_of
from servebench.util.units import MS_PER_S, NS_PER_S
from servebench.workload.sources.dataset import HUB, READERS, BadRow, dataset_faults, hub_rows

FORMATS = (
    "a WEKA trace (id, block_size, requests with t, in, out and hash_ids) as .jsonl, .json, .parquet, a folder of them or "
    "hf:OWNER/NAME, a trace of `servebench record`, or a requests.parquet of servebench"
)
BUILTIN = "builtin"
BLOCK_TOKENS = 64
"""The block of a trace that does not say its own."""
NOT_AWAITED = "async_launched"
"""The status of a sub-agent whose agent goes on meanwhile."""
OWN_COLUMNS = ("point", "session_id", "request_id", "sent_ns", "ended_ns", "prompt_tokens", "output_tokens", "warmup")


@dataclass(frozen=True)
class AgentStep:
    """One request. `pause_s` counts from the end of what is before it: the step before, and the sub-agents it waits for."""

    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    pause_s: float


@dataclass(frozen=True)
class SubAgent:
    """A sub-agent that starts when `after` steps of its agent have ended; step number `before` waits for its end (None: none)."""

    steps: tuple[AgentStep, ...]
    after: int
    before: int | None
    sub_agents: tuple["SubAgent", ...] = ()


@dataclass(frozen=True)
class AgentJob:
    """An agent with its sub-agents. Blocks of equal number are equal within a `scope`, of `block_tokens` each."""

    name: str
    steps: tuple[AgentStep, ...]
    sub_agents: tuple[SubAgent, ...] = ()
    block_tokens: int = BLOCK_TOKENS
    scope: str = ""

    @property
    def requests(self) -> int:
        """The number of its requests."""
        return sum(1 for _ in _all_steps(self))

    @property
    def longest(self) -> int:
        """The tokens of its longest prompt."""
        return max(step.input_tokens for step in _all_steps(self))


def _all_steps(agent: AgentJob | SubAgent) -> Iterator[AgentStep]:
    yield from agent.steps
    for one in agent.sub_agents:
        yield from _all_steps(one)


@dataclass(frozen=True)
class _Timed:
    """A recorded request: when it was sent and answered, in seconds, and the pause before it where that is recorded."""

    sent_s: float
    ended_s: float
    think_s: float | None
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


def agent_trace_faults(path: str) -> list[str]:
    """Return why a trace cannot be read, judged by its name."""
    if path == BUILTIN or Path(path).expanduser().is_dir():
        return []
    return [line.replace("workload.dataset=", "workload.path=").partition("; set it to")[0] + f"; use {FORMATS}"
            for line in dataset_faults(path)]  # fmt: skip


def agent_jobs(path: str) -> tuple[AgentJob, ...]:
    """Return the jobs of `builtin`, a file, a folder or a hub data set, in order. Raises ConfigError for one that cannot be read
    or has none."""
    if faults := agent_trace_faults(path):
        raise ConfigError(faults)
    file = Path(path).expanduser()
    return _read(path, file.stat().st_mtime_ns if file.exists() else 0)


@lru_cache(maxsize=4)
def _read(path: str, _changed_ns: int) -> tuple[AgentJob, ...]:
    at = ""
    jobs: list[AgentJob] = []
    try:
        for place, value in _rows(path):
            at = place
            jobs.append(value if isinstance(value, AgentJob) else weka_job(value, len(jobs)))
    except (BadRow, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        where = "" if isinstance(error, BadRow) else f"{at}: "
        raise ConfigError(f"workload.path={path}{where}{what}; use {FORMATS}") from error
    except OSError as error:
        raise ConfigError(f"workload.path={path} cannot be read: {reason_of(error)}; use {FORMATS}") from error
    jobs = [job for job in jobs if job.requests]
    if not jobs:
        raise ConfigError(f"workload.path={path} has no requests; use {FORMATS}")
    return tuple(jobs)


def _rows(path: str) -> Iterator[tuple[str, Any]]:
    """Yield each row with its place in the file. Raises BadRow, OSError."""
    if path == BUILTIN:
        text = files("servebench.workload").joinpath("data", "agent_traces.jsonl").read_text(encoding="utf-8")
        yield from ((f":{number}", parse_json(line)) for number, line in enumerate(text.splitlines(), 1))
        return
    if path.startswith(HUB):
        yield from hub_rows(path, None, "train")
        return
    file = Path(path).expanduser()
    # a download leaves other files, and hidden folders
    inside = (one for one in file.rglob("*") if suffix_of(one) in READERS and "/." not in f"/{one.relative_to(file)}")
    for one in sorted(inside) if file.is_dir() else [file]:
        for place, value in READERS[suffix_of(one)](one):
            if not isinstance(value, dict):
                raise BadRow(f"{place}: it is {type(value).__name__}, not an object with requests")
            if "requests" not in value and "session_id" in value:
                # rows are requests: the whole file is read at once
                yield from (_recorded_jobs if "hash_ids" in value else _own_jobs)(one)
                return
            yield (f"/{one.name}{place}" if file.is_dir() else place), value


def weka_job(value: Mapping[str, Any], number: int) -> AgentJob:
    """Return the job of one WEKA trace, the `number`-th of its file. Raises ValueError, KeyError, TypeError for what is none."""
    steps, sub_agents, _ = _agent(value["requests"], None, {})
    size = int(value.get("block_size") or BLOCK_TOKENS)
    if not 1 <= size <= TOKENS_MAX:
        raise ValueError(f"block_size {size} is no length of a block")
    # traces that do not say it number the blocks of each job from the start
    scope = "" if value.get("hash_id_scope") == "global" else f"{number}"
    return AgentJob(str(value.get("id") or number), steps, sub_agents, size, scope)


def _agent(
    entries: Iterable[Mapping[str, Any]], opened_s: float | None, known: dict[int, int]
) -> tuple[tuple[AgentStep, ...], tuple[SubAgent, ...], float]:
    """Return the steps of an agent that was opened at `opened_s`, its sub-agents, and when its last answer had ended."""
    main: list[_Timed] = []
    markers: list[tuple[int, float, Mapping[str, Any]]] = []
    for entry in entries:
        if entry.get("type") != "subagent":
            main.append(_timed(entry, known))
        elif entry.get("requests"):
            markers.append((len(main), main[-1].ended_s if main else float(entry["t"]), entry))
    # some files count the times of a sub-agent from its start, some from that of the job
    absolute = all(2 * float(marker["requests"][0]["t"]) >= spawned_s for _, spawned_s, marker in markers)
    sub_agents = []
    ended_s: dict[int, float] = {}
    for after, spawned_s, marker in markers:
        # some put the marker at the start of a sub-agent, some at its end
        at_s, took_s = float(marker["t"]), float(marker.get("duration_ms") or 0.0) / MS_PER_S
        zero_s = 0.0 if absolute else min(at_s, at_s - took_s, key=lambda start_s: abs(start_s - spawned_s))
        steps, inner, end_s = _agent(marker["requests"], spawned_s - zero_s if after else None, known)
        awaited = after if steps and after < len(main) and marker.get("status") != NOT_AWAITED else None
        if awaited is not None:
            ended_s[awaited] = max(ended_s.get(awaited, 0.0), zero_s + end_s)
        sub_agents.append(SubAgent(steps, after, awaited, inner))
    return _steps(main, opened_s, ended_s), tuple(sub_agents), main[-1].ended_s if main else 0.0


def _steps(timed: Sequence[_Timed], opened_s: float | None, awaited_s: Mapping[int, float]) -> tuple[AgentStep, ...]:
    """Return the steps of a session that was opened at `opened_s`; `awaited_s`: ends of sub-agents by the step that waits."""
    steps = []
    for at, (one, before_s) in enumerate(zip(timed, [opened_s, *(one.ended_s for one in timed)], strict=False)):
        ends = [end_s for end_s in (before_s, awaited_s.get(at)) if end_s is not None]
        pause_s = one.sent_s - max(ends) if ends else 0.0
        if one.think_s is not None and (at not in awaited_s or one.think_s < pause_s):
            # it counts from the answer before, also where sub-agents have worked since
            pause_s = one.think_s
        pause_s = min(max(0.0, pause_s), SECONDS_MAX)
        steps.append(AgentStep(one.input_tokens, max(1, one.output_tokens), one.blocks, pause_s))
    return tuple(steps)


def _timed(entry: Mapping[str, Any], known: dict[int, int]) -> _Timed:
    # a prompt repeats the ids of the one before: each is kept in memory once
    sent_s = float(entry["t"])
    tokens = int(entry["in"]), int(entry["out"])
    if not (1 <= tokens[0] <= TOKENS_MAX and 0 <= tokens[1] <= TOKENS_MAX):
        raise ValueError(f"in {tokens[0]} and out {tokens[1]} are no token counts")
    think, api_s = entry.get("think_time"), float(entry.get("api_time") or 0.0)
    blocks = tuple(known.setdefault(block, block) for block in map(int, entry.get("hash_ids") or ()))
    return _Timed(sent_s, sent_s + api_s, None if think is None else float(think), *tokens, blocks)


def _recorded_jobs(path: Path) -> Iterator[tuple[str, AgentJob]]:
    """Yield the sessions of a trace that `servebench record` has written, one job each, without requests that failed."""
    sessions: dict[str, list[Mapping[str, Any]]] = {}
    size = BLOCK_TOKENS
    for _, row in READERS[suffix_of(path)](path):
        tokens = {"in": row["input_length"], "out": row["output_length"]}
        if all(tokens.values()):
            sessions.setdefault(row["session_id"], []).append({**row, "t": row["timestamp"] / MS_PER_S, **tokens})
        # the recording knows it best at its end
        size = row.get("block_size", size)
    for name, entries in sessions.items():
        entries.sort(key=itemgetter("t"))
        job = {"id": name, "block_size": size, "hash_id_scope": "global", "requests": entries}
        yield f", session {name}", weka_job(job, 0)


def _own_jobs(path: Path) -> Iterator[tuple[str, AgentJob]]:
    """Yield the sessions of a requests.parquet, one job each: a prompt begins as the one before it in its session, as far as
    their lengths allow, and pauses are those between answer and request."""
    sessions: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in read_parquet(path, columns=list(OWN_COLUMNS)).to_pylist():
        if not row["warmup"] and row["sent_ns"] and row["prompt_tokens"]:
            sessions.setdefault((row["point"], row["session_id"] or row["request_id"]), []).append(row)
    for number, ((point, session), rows) in enumerate(sessions.items()):
        timed = [_own(row) for row in sorted(rows, key=lambda row: row["sent_ns"])]
        yield f", session {session}", AgentJob(f"{point}/{session}", _steps(timed, None, {}), scope=str(number))


def _own(row: Mapping[str, Any]) -> _Timed:
    sent_s, ended_s = row["sent_ns"] / NS_PER_S, row["ended_ns"] / NS_PER_S
    tokens, answered = int(row["prompt_tokens"]), int(row["output_tokens"] or 1)
    return _Timed(sent_s, ended_s, None, tokens, answered, tuple(range(-(-tokens // BLOCK_TOKENS))))
