"""The workload `agent_loop`: agents that call tools, read results into a growing context, and start others."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import LengthSettings, PositiveInt, TokenCount, WorkloadSettings
from servebench.workload.lengths import sample_lengths
from servebench.workload.salt import generator, salt
from servebench.workload.sessions import History, Piece, Session, SessionStep, interleave, session_requests
from servebench.workload.unique import WordList

DEFAULT_INPUT_TOKENS = 96
DEFAULT_OUTPUT_TOKENS = 48

TOOLS = ("search", "read_file", "run_tests", "edit_file", "list_folder")
CALL_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "tool": {"type": "string", "enum": list(TOOLS)},
        "argument": {"type": "string", "maxLength": 120},
    },
    "required": ["tool", "argument"],
    "additionalProperties": False,
}
"""A tool call as the agent is to write it, and as `enforce_calls` has the engine enforce it."""


@dataclass(frozen=True, kw_only=True)
class AgentLoopSettings(WorkloadSettings):
    """An agent takes `steps`, `active` agents at a time. `input_tokens` is its task, `result_tokens` what a tool gives back
    after each step, `system_tokens` the description of tools that all agents share. After its first step an agent starts
    `fan_out` sub-agents that begin with its context and take `sub_steps` each; it goes on when they have ended.
    `tool_s` is the mean of the exponential time that a tool takes. With `enforce_calls` answers must be tool calls.
    `history` is what stands in it for the agent's turns, and for what sub-agents report: `real`, what the model answered,
    or `scripted`, calls written ahead that are as long as the answers asked for."""

    steps: PositiveInt | LengthSettings = 5
    active: PositiveInt = 8
    system_tokens: Annotated[int, Ge(96)] = 384
    result_tokens: TokenCount | LengthSettings = 128
    fan_out: Annotated[int, Ge(0), Le(64)] = 0
    sub_steps: PositiveInt | LengthSettings = 2
    tool_s: Annotated[float, Ge(0)] = 0.0
    enforce_calls: bool = False
    history: History = "real"
    exact_output: bool = True


class AgentLoopWorkload(Workload):
    """Loops of a tool call by the model and a result by the user's side, the whole history sent each time.

    Calls and results are plain messages, so that every chat template takes them. Results of tools are written ahead.
    With `cache` `cold` each stream has a description of tools of its own.
    """

    name = "agent_loop"
    settings_type = AgentLoopSettings
    reference_keys = ("schema",)

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__(settings)
        assert isinstance(settings, AgentLoopSettings)
        self._settings = settings
        self._words = WordList()

    def check(self) -> list[str]:
        """Calls that are to be JSON and to go on after it."""
        if self._settings.enforce_calls and self._settings.exact_output:
            return ["workload.enforce_calls=true: a call ends where its JSON does; set workload.exact_output=false"]
        return []

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """`count` requests: whole loops but for the last ones. Raises ConfigError when messages are too short."""
        settings = self._settings
        rng = generator(settings.seed, stream)
        sessions: list[Session] = []
        planned = agents = 0
        while planned < count:
            new = self._agent(agents, stream, rng)
            agents += 1
            sessions += new
            planned += sum(len(session.steps) for session in new)
        order = interleave(sessions, settings.active, rng)[:count]
        return session_requests(
            order,
            settings,
            stream,
            tokenizer=tokenizer,
            rng=rng,
            words=self._words.of(tokenizer),
            history=settings.history,
        )

    def _agent(self, index: int, stream: str, rng: random.Random) -> list[Session]:
        """An agent and its sub-agents."""
        settings = self._settings
        name = f"a{index}"
        system = (self._system(stream),)
        (steps,) = sample_lengths(settings.steps, 1, rng)
        children = [f"{name}.{child}" for child in range(settings.fan_out)]
        sizes = {child: sample_lengths(settings.sub_steps, 1, rng)[0] for child in children}
        results = self._results(sizes, stream)
        own = self._steps(name, steps, stream, rng, joined=results)
        if not children:
            return [Session(name, own, before=system)]
        context = (*system, *own[0].news, own[0].answer)
        found = [Session(name, own, before=system, waits_for={1: tuple(children)})]
        for child, count in sizes.items():
            found.append(Session(child, self._steps(child, count, stream, rng), before=context, opens_after=(name, 1)))
        return found

    def _results(self, sizes: Mapping[str, int], stream: str) -> tuple[Piece, ...]:
        """What the sub-agents bring back; `sizes` are their steps."""
        rng = generator(self._settings.seed, f"{stream}/{list(sizes)}")
        tokens = sample_lengths(self._settings.result_tokens, len(sizes), rng)
        return tuple(
            Piece(
                "user",
                f"Result of {child} [{self._salt(stream, child, 'end')}]:",
                length,
                answers=(child, steps - 1),
            )
            for (child, steps), length in zip(sizes.items(), tokens, strict=True)
        )

    def _steps(
        self, name: str, count: int, stream: str, rng: random.Random, *, joined: tuple[Piece, ...] = ()
    ) -> tuple[SessionStep, ...]:
        settings = self._settings
        tasks = sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, 1, rng)
        results = sample_lengths(settings.result_tokens, count, rng)
        outputs = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, count, rng)
        steps = []
        for number in range(count):
            mark = self._salt(stream, name, str(number))
            if number == 0:
                news: tuple[Piece, ...] = (Piece("user", f"[{mark}] Task:", tasks[0]),)
            else:
                news = (Piece("user", f"Result [{mark}]:", results[number]),)
            steps.append(
                SessionStep(
                    news=(*joined, *news) if number == 1 else news,
                    output_tokens=outputs[number],
                    answer=_call(rng, mark, outputs[number], (name, number)),
                    think_s=rng.expovariate(1 / settings.tool_s) if number and settings.tool_s else None,
                    schema=CALL_SCHEMA if settings.enforce_calls else None,
                    reference={"schema": CALL_SCHEMA} if settings.enforce_calls else None,
                )
            )
        return tuple(steps)

    def _system(self, stream: str) -> Piece:
        settings = self._settings
        owner = f"tools/{stream}" if settings.cache == "cold" else "tools"
        text = (
            f"[{salt(settings.seed, owner, 0)}] You work in steps. In each, call one tool by answering with JSON of this "
            f"schema and nothing else: {json.dumps(CALL_SCHEMA, separators=(',', ':'))} Notes on the tools:"
        )
        return Piece("system", text, settings.system_tokens, owner=owner)

    def _salt(self, stream: str, name: str, what: str) -> str:
        return salt(self._settings.seed, f"{stream}/{name}/{what}", 0)


def _call(rng: random.Random, mark: str, tokens: int, step: tuple[str, int]) -> Piece:
    """A call written ahead: JSON where there is room for it."""
    tool = rng.choice(TOOLS)
    if tokens < 40:
        return Piece("assistant", tool, tokens, answers=step)
    return Piece("assistant", f'{{"tool":"{tool}","argument":"{mark}', tokens, '"}', answers=step)
