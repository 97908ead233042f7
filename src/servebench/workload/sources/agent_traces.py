"""Read recorded sessions of agents: the WEKA format (`hash_ids`), and a requests.parquet of servebench. Never text.

A WEKA trace (github.com/callanjfox/kv-cache-tester, docs/trace_replay_tester.md) is a JSON object of one job: `id`, `block_size`,
`hash_id_scope` and `requests`, each with its time `t` in seconds, the tokens `in` and `out`, and the `hash_ids` of its prompt's
blocks; `api_time` and `think_time` are how long the recorded answer and the pause since the answer before took. An entry of
`type` `subagent` has the `requests` of a sub-agent, which may have sub-agents too. A trace of `servebench record` has a line for
each request, with its session.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from math import isfinite
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
OVERLAP_S = 0.1
"""A request of a list that is sent so much before the answer to another one is from another agent: times are rounded."""
SHOWN_MAX = 40
"""How much of a wrong value a message shows."""
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
    agent, _ = _agent(value["requests"], None, {})
    size = BLOCK_TOKENS if value.get("block_size") is None else int(_number(value, "block_size"))
    if not 1 <= size <= TOKENS_MAX:
        raise ValueError(f"block_size {size} is no length of a block")
    # traces that do not say it number the blocks of each job from the start
    scope = "" if value.get("hash_id_scope") == "global" else f"{number}"
    return AgentJob(str(value.get("id") or number), agent.steps, agent.sub_agents, size, scope)


@dataclass
class _Thread:
    """What one agent of a list did: its requests, and the markers of its sub-agents, each with the number of requests before
    it and the end of the last of them."""

    timed: list[_Timed] = field(default_factory=list)
    own_pause: list[bool] = field(default_factory=list)
    """Whether the request before each, in the list, is that of the same agent, and the pause fits between them."""
    markers: list[tuple[int, float, Mapping[str, Any]]] = field(default_factory=list)


def _agent(
    entries: Iterable[Mapping[str, Any]], opened_s: float | None, known: dict[int, int]
) -> tuple[SubAgent, float]:
    """Return an agent that was opened at `opened_s` with its sub-agents, and when its last answer had ended.

    Many recordings list the requests of agents that worked at once one after another: all but the first become its sub-agents.
    """
    threads = [_Thread()]
    at = threads[0]
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, Mapping):
            raise ValueError(f"request {number} is {repr(entry)[:SHOWN_MAX]}, not an object")
        if entry.get("type") != "subagent":
            one, last = _timed(entry, known), at
            at = _thread_of(one, threads)
            at.own_pause.append(at is last and bool(at.timed) and _may_think(one, at.timed[-1]))
            at.timed.append(one)
        elif entry.get("requests"):
            at.markers.append((len(at.timed), at.timed[-1].ended_s if at.timed else _number(entry, "t"), entry))
    if len(threads) > 1:
        # what was thought between requests of different agents is no pause of one
        for thread in threads:
            kept = zip(thread.timed, thread.own_pause, strict=True)
            thread.timed = [one if own else replace(one, think_s=None) for one, own in kept]
    # some files count the times of a sub-agent from its start, some from that of the job
    markers = [marker for thread in threads for marker in thread.markers]
    absolute = all(
        2 * _number(marker["requests"][0], "t") >= (spawned_s or _number(marker, "t"))
        for _, spawned_s, marker in markers
    )
    main, *others = threads
    beside = []
    for thread in others:
        after = sum(one.ended_s <= thread.timed[0].sent_s for one in main.timed)
        agent, end_s = _thread_agent(thread, main.timed[after - 1].ended_s if after else None, absolute, known)
        before = next(
            (number for number, one in enumerate(main.timed) if number >= after and one.sent_s >= end_s), None
        )
        beside.append((replace(agent, after=after, before=before), end_s))
    return _thread_agent(main, opened_s, absolute, known, beside)


def _thread_of(one: _Timed, threads: list[_Thread]) -> _Thread:
    """Return the agent of a list to which its next request belongs: a new one where the others still wait for answers, and this
    prompt does not continue theirs. Among several it is the one whose last prompt begins most like this one."""
    free = [thread for thread in threads if not thread.timed or _may_follow(one, thread.timed[-1])]
    if not free:
        threads.append(_Thread())
        return threads[-1]
    return max(free, key=lambda thread: _alike(one, thread.timed[-1]) if len(free) > 1 else 0)


def _may_think(one: _Timed, last: _Timed) -> bool:
    return one.think_s is not None and one.think_s <= one.sent_s - last.sent_s


def _may_follow(one: _Timed, last: _Timed) -> bool:
    if one.sent_s >= last.ended_s - OVERLAP_S or not (one.blocks and last.blocks):
        return True
    # the last block grows: its number changes
    alike = _alike(one, last)
    return alike == len(last.blocks) or (0 < alike == len(last.blocks) - 1 and len(one.blocks) > len(last.blocks))


def _alike(one: _Timed, last: _Timed) -> int:
    """Return how many blocks the beginnings of two prompts share."""
    low, high = 0, min(len(one.blocks), len(last.blocks))
    while low < high:
        middle = (low + high + 1) // 2
        if one.blocks[low:middle] == last.blocks[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _thread_agent(
    thread: _Thread,
    opened_s: float | None,
    absolute: bool,
    known: dict[int, int],
    beside: Sequence[tuple[SubAgent, float]] = (),
) -> tuple[SubAgent, float]:
    """Return one agent of a list with its sub-agents and those that worked `beside` it, and when its last answer had ended."""
    main = thread.timed
    sub_agents = [one for one, _ in beside]
    ended_s: dict[int, float] = {}
    for one, end_s in beside:
        if one.before is not None:
            ended_s[one.before] = max(ended_s.get(one.before, 0.0), end_s)
    for after, spawned_s, marker in thread.markers:
        # some put the marker at the start of a sub-agent, some at its end
        at_s, took_s = _number(marker, "t"), float(marker.get("duration_ms") or 0.0) / MS_PER_S
        # without the time of the answer before, nothing says that it was the end
        may_end = not after or main[after - 1].ended_s > main[after - 1].sent_s
        starts_s = (at_s, at_s - took_s) if may_end else (at_s,)
        zero_s = 0.0 if absolute else min(starts_s, key=lambda start_s: abs(start_s - spawned_s))
        agent, end_s = _agent(marker["requests"], spawned_s - zero_s if after else None, known)
        awaited = after if agent.steps and after < len(main) and marker.get("status") != NOT_AWAITED else None
        if awaited is not None:
            ended_s[awaited] = max(ended_s.get(awaited, 0.0), zero_s + end_s)
        sub_agents.append(replace(agent, after=after, before=awaited))
    steps = _steps(main, opened_s, ended_s)
    return SubAgent(steps, 0, None, tuple(sub_agents)), main[-1].ended_s if main else 0.0


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
    sent_s = _number(entry, "t")
    counts = _number(entry, "in"), _number(entry, "out")
    if not (all(one.is_integer() for one in counts) and 1 <= counts[0] <= TOKENS_MAX and 0 <= counts[1] <= TOKENS_MAX):
        raise ValueError(f"in {counts[0]:.15g} and out {counts[1]:.15g} are no token counts")
    tokens = int(counts[0]), int(counts[1])
    think, api_s = entry.get("think_time"), _number(entry, "api_time") if entry.get("api_time") is not None else 0.0
    blocks = tuple(known.setdefault(block, block) for block in map(int, entry.get("hash_ids") or ()))
    return _Timed(sent_s, sent_s + api_s, None if think is None else _number(entry, "think_time"), *tokens, blocks)


def _number(entry: Mapping[str, Any], key: str) -> float:
    value = entry[key]
    with suppress(TypeError, ValueError):
        if not isinstance(value, bool) and isfinite(number := float(value)):
            return number
    raise ValueError(f"{key} is {repr(value)[:SHOWN_MAX]}, not a number")


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
