"""The workload `agent_trace`: recorded sessions of agents, with their shared prefixes, pauses and sub-agents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Literal

from annotated_types import Ge, Le

from servebench.contracts.request import Message, PriorAnswer, Request, Tokenizer, answer_mark
from servebench.contracts.settings import SECONDS_MAX, PositiveInt
from servebench.protocol.kinds.table import kind_named
from servebench.util.errors import ConfigError
from servebench.workload.build.seeding import SALT_TOKENS_MAX, generator
from servebench.workload.build.sessions import Piece, Session, SessionStep, ids_before, interleave
from servebench.workload.sources.agent_traces import AgentJob, AgentStep, SubAgent, agent_jobs, agent_trace_faults
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
    all pauses are shortened alike so that the next request is sent after at most `idle_cap_s` (null: never); no pause is longer
    than `pause_cap_s` (null: as recorded). Both have the values of AIPerf's scenario `agentx`. `max_input_tokens` leaves out
    jobs with a longer prompt.
    """

    history: Literal["recorded", "real"] = "recorded"
    active: PositiveInt = 16
    idle_cap_s: Annotated[float, Ge(0), Le(SECONDS_MAX)] | None = 10.0
    pause_cap_s: Annotated[float, Ge(0), Le(SECONDS_MAX)] | None = 300.0


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
        return self.length_faults(self.settings.block_tokens or least)

    def notes(self) -> list[str]:
        """Say which jobs are left out."""
        every = len(agent_jobs(self.settings.path))
        what = f"of {every:,} jobs have a prompt longer than workload.max_input_tokens and are left out"
        return [f"{self.settings.path}: {long:,} {what}"] if (long := every - len(self._jobs())) else []

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return the first `count` requests; the last jobs may be incomplete. Raises ConfigError when none is left."""
        settings = self.settings
        sessions: list[Session] = []
        steps: dict[Step, AgentStep] = {}
        jobs: dict[str, tuple[AgentJob, str]] = {}
        kept = self._jobs()
        number = 0
        # no job is repeated only to have as many at a time
        while len(steps) < count or number < min(settings.active, len(kept)):
            lap, place = divmod(number, len(kept))
            for session, recorded in sessions_of(kept[place], f"j{number}"):
                steps |= {(session.name, at): step for at, step in enumerate(recorded)}
                jobs[session.name] = (kept[place], f"{lap}/{kept[place].scope}")
                sessions.append(session)
            number += 1
        order = interleave(sessions, settings.active, generator(settings.seed, stream))[:count]
        ids = {(session.name, number): f"{stream}-{place:05d}" for place, (session, number) in enumerate(order)}
        # -1 is the last step of a session
        ids |= {(name, -1): request_id for (name, _), request_id in ids.items()}
        prompts = _Prompts(self, stream, tokenizer, ids, steps, jobs)
        return [self._request(session, number, prompts) for session, number in order]

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
        own = self.settings.block_tokens
        return kept if own is None else [replace(job, block_tokens=own) for job in kept]

    def scaled(self, tokens: int) -> int:
        """Return a length after scaling."""
        return max(1, round(tokens * self.settings.length_scale))

    def _request(self, session: Session, number: int, prompts: "_Prompts") -> Request:
        settings, stream, step = self.settings, prompts.stream, session.steps[number]
        messages, answers, tokens = prompts.of(session, number)
        chat = kind_named(settings.api).takes_messages
        return Request(
            request_id=prompts.ids[session.name, number],
            api=settings.api,
            messages=messages if chat else None,
            prompt=None if chat else "".join(one.content for one in messages),
            output_tokens=self.scaled(step.output_tokens),
            exact_output=settings.exact_output,
            temperature=settings.temperature,
            prompt_tokens=None if answers else tokens,
            session_id=f"{stream}/{session.name}",
            think_s=step.think_s and min(step.think_s, inf if settings.pause_cap_s is None else settings.pause_cap_s),
            job=f"{stream}/{session.job}",
            job_requests=session.job_requests,
            after=ids_before(session, number, prompts.ids),
            answers=answers,
        )


def sessions_of(job: AgentJob, name: str) -> list[tuple[Session, tuple[AgentStep, ...]]]:
    """Return the sessions of a job, sub-agents before their agent, each with its recorded steps."""
    found: list[tuple[Session, tuple[AgentStep, ...]]] = []

    def add(agent: AgentJob | SubAgent, session: str, opens_after: Step | None) -> None:
        waits_for: dict[int, tuple[str, ...]] = {}
        for number, one in enumerate(agent.sub_agents):
            child = f"{session}.{number}"
            add(one, child, (session, one.after) if one.after else opens_after)
            if one.before is not None:
                waits_for[one.before] = (*waits_for.get(one.before, ()), child)
        steps = tuple(SessionStep((), one.output_tokens, RECORDED, one.pause_s or None) for one in agent.steps)
        if steps:
            made = Session(session, steps, (), opens_after, waits_for, name, job.requests)
            found.append((made, agent.steps))

    add(job, name, None)
    return found


Prompt = tuple[tuple[Message, ...], tuple[PriorAnswer, ...], int]
"""The messages of a prompt, the real answers in it, and its tokens by the plan."""


@dataclass
class _Prompts:
    """Makes the prompts of a stream; those of a session in order."""

    workload: AgentTraceWorkload
    stream: str
    tokenizer: Tokenizer
    ids: Mapping[Step, str]
    steps: Mapping[Step, AgentStep]
    jobs: Mapping[str, tuple[AgentJob, str]]
    """By session: its job, and the scope of its blocks."""
    _blocks: dict[str, str] = field(default_factory=dict)
    _made: dict[Step, Prompt] = field(default_factory=dict)

    def of(self, session: Session, number: int) -> Prompt:
        """Return the prompt of a step. With real history one that continues that of an earlier step contains its answer."""
        name, done = (session.name, number) if number else session.opens_after or (session.name, 0)
        at, before = (session.name, number), (name, done - 1)
        real = self.workload.settings.history == "real" and self._continues(at, before)
        self._made[at] = self._continued(at, before) if real else self._new(at)
        return self._made[at]

    def _continues(self, at: Step, before: Step) -> bool:
        """Whether a prompt begins with the whole blocks of an earlier one, and has room for its answer and something new."""
        if before not in self._made:
            return False
        step, earlier = self.steps[at], self.steps[before]
        whole = earlier.input_tokens // self.jobs[at[0]][0].block_tokens
        room = step.input_tokens - earlier.input_tokens - earlier.output_tokens
        return room > 0 and step.blocks[:whole] == earlier.blocks[:whole]

    def _new(self, at: Step) -> Prompt:
        (job, scope), step, scaled = self.jobs[at[0]], self.steps[at], self.workload.scaled
        names = [
            *(f"{self._owner}/{scope}/{block}" for block in step.blocks),
            f"{self._owner}/alone/{self.stream}/{at}",
        ]
        lengths = scaled(step.input_tokens), scaled(job.block_tokens)
        text, tokens = self.workload.prompt_of(names, *lengths, self._blocks, self.tokenizer)
        return (Message("user", text),), (), tokens

    def _continued(self, at: Step, before: Step) -> Prompt:
        messages, answers, tokens = self._made[before]
        asked = self.workload.scaled(self.steps[before].output_tokens)
        rest = max(SALT_TOKENS_MAX, self.workload.scaled(self.steps[at].input_tokens) - tokens - asked)
        name = f"{self._owner}/{{}}/{self.stream}/{{}}"
        said, _ = self.workload.piece("", name.format("said", before), asked, self.tokenizer)
        text, _ = self.workload.piece("", name.format("heard", at), rest, self.tokenizer)
        answer = PriorAnswer(of=self.ids[before], mark=answer_mark(self.ids[before]), stand_in=said)
        news = Message("assistant", answer.mark), Message("user", text)
        return (*messages, *news), (*answers, answer), tokens + asked + rest

    @property
    def _owner(self) -> str:
        return f"agents/{self.stream}" if self.workload.settings.cache == "cold" else "agents"
