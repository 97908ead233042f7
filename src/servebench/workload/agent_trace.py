"""The workload `agent_trace`: recorded sessions of agents, with their shared prefixes, pauses and sub-agents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from typing import Annotated, Literal

from annotated_types import Ge, Le

from servebench.contracts.request import Message, PriorAnswer, Request, Tokenizer, answer_mark
from servebench.contracts.settings import SECONDS_MAX, PositiveInt
from servebench.protocol.kinds.table import kind_named
from servebench.util.errors import ConfigError
from servebench.workload.build.seeding import SALT_TOKENS_MAX, generator
from servebench.workload.build.sessions import Piece, Session, SessionStep, ids_before, interleave
from servebench.workload.sources.agent_traces import (
    AgentJob,
    AgentStep,
    agent_jobs,
    agent_trace_faults,
)
from servebench.workload.trace import TraceSettings, TraceWorkload

RECORDED = Piece("assistant", "", 0)
"""The recorded answers are blocks of the next prompt."""
Step = tuple[str, int]
"""A step of a session, by its name and number."""


@dataclass(frozen=True, kw_only=True)
class AgentTraceSettings(TraceSettings):
    """`path` is `builtin` or a trace of agents. `active` agents work at a time, more where a level has more users.

    With `history: recorded` each prompt is made of its recorded blocks, which contain the recorded answers, and is the same for
    every engine; with `real` a prompt that continues another one contains the model's answer to it. Where nothing is in flight,
    all pauses are shortened alike so that the next request is sent after at most `idle_cap_s` (null: never). `max_input_tokens`
    leaves out jobs with a longer prompt.
    """

    history: Literal["recorded", "real"] = "recorded"
    active: PositiveInt = 16
    idle_cap_s: Annotated[float, Ge(0), Le(SECONDS_MAX)] | None = 10.0


class AgentTraceWorkload(TraceWorkload):
    """The trace's jobs in order; when more are needed, they are repeated with other blocks.

    Prompts share text exactly as far as their leading hash ids are equal, in all sessions of the ids' scope. A sub-agent starts
    when the step that spawns it has ended, and the step that waits for it is sent after its end. With `cache` `cold` each stream
    has its own blocks.
    """

    name = "agent_trace"
    settings: AgentTraceSettings
    settings_type = AgentTraceSettings

    def check(self) -> list[str]:
        """Report a trace that cannot be read, lengths that have no effect, and blocks too short to be distinct."""
        if faults := agent_trace_faults(self.settings.path):
            return faults
        try:
            least = min(job.block_tokens for job in agent_jobs(self.settings.path))
        except ConfigError as error:
            return list(error.faults)
        return self.length_faults(self.scaled(least))

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return the first `count` requests; the last jobs may be incomplete. Raises ConfigError when none is left."""
        settings = self.settings
        sessions: list[Session] = []
        steps: dict[Step, AgentStep] = {}
        jobs: dict[str, tuple[AgentJob, str]] = {}
        kept = self._jobs()
        # no job is repeated only to have as many at a time
        least = min(settings.active, len(kept))
        for number in count_from():
            if len(steps) >= count and number >= least:
                break
            lap, place = divmod(number, len(kept))
            job = kept[place]
            scope = f"{lap}/{job.scope}"
            found = sessions_of(job, f"j{number}")
            for session, recorded in found:
                steps.update({(session.name, place): step for place, step in enumerate(recorded)})
                jobs[session.name] = (job, scope)
            sessions += [session for session, _ in found]
        order = interleave(sessions, settings.active, generator(settings.seed, stream))[:count]
        ids = {(session.name, number): f"{stream}-{place:05d}" for place, (session, number) in enumerate(order)}
        # -1 is the last step of a session
        ids |= {(name, -1): request_id for (name, _), request_id in ids.items()}
        maker = _Prompts(self, stream, tokenizer, ids=ids, steps=steps, jobs=jobs)
        return [self._request(session, number, stream, ids, maker) for session, number in order]

    def _jobs(self) -> list[AgentJob]:
        """Return the jobs that are short enough. Raises ConfigError if there is none."""
        most = self.settings.max_input_tokens
        everything = agent_jobs(self.settings.path)
        kept = [job for job in everything if most is None or self.scaled(job.longest) <= most]
        if not kept:
            raise ConfigError(
                f"workload.max_input_tokens={most} leaves no job of workload.path={self.settings.path}: the longest prompt of "
                f"the shortest one has {self.scaled(min(job.longest for job in everything))} tokens; raise it"
            )
        return kept

    def scaled(self, tokens: int) -> int:
        """Return a length after scaling."""
        return max(1, round(tokens * self.settings.length_scale))

    def _request(
        self, session: Session, number: int, stream: str, ids: Mapping[Step, str], prompts: "_Prompts"
    ) -> Request:
        settings = self.settings
        step = session.steps[number]
        messages, answers, tokens = prompts.of(session, number)
        chat = kind_named(settings.api).takes_messages
        return Request(
            request_id=ids[session.name, number],
            api=settings.api,
            messages=messages if chat else None,
            prompt=None if chat else "".join(one.content for one in messages),
            output_tokens=self.scaled(step.output_tokens),
            exact_output=settings.exact_output,
            temperature=settings.temperature,
            prompt_tokens=None if answers else tokens,
            session_id=f"{stream}/{session.name}",
            think_s=step.think_s,
            job=f"{stream}/{session.job}",
            job_requests=session.job_requests,
            after=ids_before(session, number, ids),
            answers=answers,
        )


def sessions_of(job: AgentJob, name: str) -> list[tuple[Session, tuple[AgentStep, ...]]]:
    """Return the sessions of a job, its sub-agents first, each with its recorded steps."""
    names = [f"{name}.{number}" for number in range(len(job.sub_agents))]
    waits_for: dict[int, tuple[str, ...]] = {}
    for child, one in zip(names, job.sub_agents, strict=True):
        if one.before is not None:
            waits_for[one.before] = (*waits_for.get(one.before, ()), child)
    found = [
        (_session(child, one.steps, job, name, opens_after=(name, one.after) if one.after else None), one.steps)
        for child, one in zip(names, job.sub_agents, strict=True)
    ]
    if job.steps:
        found.append((_session(name, job.steps, job, name, waits_for=waits_for), job.steps))
    return found


def _session(
    name: str,
    steps: Sequence[AgentStep],
    job: AgentJob,
    job_name: str,
    *,
    opens_after: Step | None = None,
    waits_for: Mapping[int, tuple[str, ...]] | None = None,
) -> Session:
    made = tuple(SessionStep((), one.output_tokens, RECORDED, one.pause_s or None) for one in steps)
    return Session(
        name, made, opens_after=opens_after, waits_for=waits_for or {}, job=job_name, job_requests=job.requests
    )


Prompt = tuple[tuple[Message, ...], tuple[PriorAnswer, ...], int]
"""The messages of a prompt, the real answers in it, and its tokens by the plan."""


class _Prompts:
    """Makes the prompts of a stream; those of a session in order."""

    def __init__(
        self,
        workload: AgentTraceWorkload,
        stream: str,
        tokenizer: Tokenizer,
        *,
        ids: Mapping[Step, str],
        steps: Mapping[Step, AgentStep],
        jobs: Mapping[str, tuple[AgentJob, str]],
    ) -> None:
        self._workload, self._tokenizer, self._ids, self._steps, self._jobs = workload, tokenizer, ids, steps, jobs
        self._owner = f"agents/{stream}" if workload.settings.cache == "cold" else "agents"
        self._stream = stream
        self._blocks: dict[str, str] = {}
        self._made: dict[Step, Prompt] = {}

    def of(self, session: Session, number: int) -> Prompt:
        """Return the prompt of a step. With real history one that continues that of an earlier step contains its answer."""
        at = (session.name, number)
        before: Step | None = (session.name, number - 1) if number else None
        if before is None and session.opens_after is not None:
            before = (session.opens_after[0], session.opens_after[1] - 1)
        real = self._workload.settings.history == "real"
        self._made[at] = (
            self._continued(at, before) if real and before and self._continues(at, before) else self._new(at)
        )
        return self._made[at]

    def _continues(self, at: Step, before: Step) -> bool:
        """Whether a prompt begins with the whole blocks of an earlier one, and has room for its answer and something new."""
        step, earlier = self._steps[at], self._steps[before]
        whole = earlier.input_tokens // self._jobs[at[0]][0].block_tokens
        room = step.input_tokens - earlier.input_tokens - earlier.output_tokens
        return room > 0 and step.blocks[:whole] == earlier.blocks[:whole] and before in self._made

    def _new(self, at: Step) -> Prompt:
        (job, scope), step = self._jobs[at[0]], self._steps[at]
        names = [f"{self._owner}/{scope}/{block}" for block in step.blocks]
        names.append(f"{self._owner}/alone/{self._stream}/{at}")
        scaled = self._workload.scaled
        text, tokens = self._workload.prompt_of(
            names, scaled(step.input_tokens), scaled(job.block_tokens), self._blocks, self._tokenizer
        )
        return (Message("user", text),), (), tokens

    def _continued(self, at: Step, before: Step) -> Prompt:
        messages, answers, tokens = self._made[before]
        step, earlier = self._steps[at], self._steps[before]
        scaled = self._workload.scaled
        asked = scaled(earlier.output_tokens)
        said, _ = self._workload.piece("", f"{self._owner}/said/{self._stream}/{before}", asked, self._tokenizer)
        rest = max(SALT_TOKENS_MAX, scaled(step.input_tokens) - tokens - asked)
        text, _ = self._workload.piece("", f"{self._owner}/heard/{self._stream}/{at}", rest, self._tokenizer)
        mark = answer_mark(self._ids[before])
        answer = PriorAnswer(of=self._ids[before], mark=mark, stand_in=said)
        return (*messages, Message("assistant", mark), Message("user", text)), (*answers, answer), tokens + asked + rest
