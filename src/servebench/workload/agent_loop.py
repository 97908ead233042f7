"""The workload `agent_loop`: agents that call tools, add the results to a growing context, and start sub-agents."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le

from servebench.contracts.settings import LengthSettings, PositiveInt, TokenCount
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.seeding import generator, salt
from servebench.workload.build.sessions import (
    MESSAGE_TOKENS_MIN,
    Piece,
    Session,
    SessionSettings,
    SessionStep,
    SessionWorkload,
    ThinkTime,
)

DEFAULT_INPUT_TOKENS = 96
DEFAULT_OUTPUT_TOKENS = 48

TOOLS = ("search", "read_file", "run_tests", "edit_file", "list_folder")
CALL_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"tool": {"type": "string", "enum": list(TOOLS)}, "argument": {"type": "string", "maxLength": 120}},
    "required": ["tool", "argument"],
    "additionalProperties": False,
}
"""The form of a tool call, which the engine enforces with `enforce_calls`."""


@dataclass(frozen=True, kw_only=True)
class AgentLoopSettings(SessionSettings):
    """An agent takes `steps`, `active` agents at a time. `input_tokens` is the length of its task, `result_tokens` that of a
    tool's result after each step, `system_tokens` that of the tool description that all agents share. After its first
    step an agent starts `fan_out` sub-agents, which begin with its context and take `sub_steps` each; it continues when
    they have ended. `tool_s` is the mean of the exponential time that a tool takes. With `enforce_calls` answers must be
    tool calls. `history` applies to the reports of sub-agents too; scripted turns are calls."""

    steps: PositiveInt | LengthSettings = 5
    active: PositiveInt = 8
    system_tokens: Annotated[int, Ge(96)] = 384
    result_tokens: TokenCount | LengthSettings = 128
    fan_out: Annotated[int, Ge(0), Le(64)] = 0
    sub_steps: PositiveInt | LengthSettings = 2
    tool_s: ThinkTime = 0.0
    enforce_calls: bool = False


class AgentLoopWorkload(SessionWorkload):
    """Loops of a tool call by the model and a result from the user, with the whole history in each request.

    Calls and results are plain messages, which every chat template accepts. Tool results are written in advance.
    With `cache` `cold` each stream has its own tool description.
    """

    name = "agent_loop"
    settings: AgentLoopSettings
    settings_type = AgentLoopSettings
    reference_keys = ("schema",)

    def check(self) -> list[str]:
        """Report calls that must be JSON and yet continue after it."""
        faults = super().check()
        if self.settings.enforce_calls and self.settings.exact_output:
            faults.append("workload.enforce_calls=true: a call ends with its JSON; set workload.exact_output=false")
        return faults

    def sessions_of(self, user: int, stream: str, rng: random.Random) -> Sequence[Session]:
        """Return the sessions of an agent and its sub-agents."""
        settings = self.settings
        name = f"a{user}"
        system = (self._system(stream),)
        (steps,) = sample_lengths(settings.steps, 1, rng)
        children = [f"{name}.{child}" for child in range(settings.fan_out)]
        sizes = {child: sample_lengths(settings.sub_steps, 1, rng)[0] for child in children}
        results = self._results(sizes, stream)
        steps_of_agent = self._steps(name, steps, stream, rng, sub_results=results)
        if not children:
            return [Session(name, steps_of_agent, before=system)]
        context = (*system, *steps_of_agent[0].news, steps_of_agent[0].answer)
        job_requests = steps + sum(sizes.values())
        waits_for = {1: tuple(children)}
        agent = Session(name, steps_of_agent, before=system, waits_for=waits_for, job_requests=job_requests)
        alike: dict[str, Any] = {"opens_after": (name, 1), "job": name, "job_requests": job_requests}
        return [
            agent,
            *(Session(child, self._steps(child, n, stream, rng), context, **alike) for child, n in sizes.items()),
        ]

    def _results(self, sizes: Mapping[str, int], stream: str) -> tuple[Piece, ...]:
        """Return the messages that bring back the results of the sub-agents; `sizes` are their numbers of steps."""
        rng = generator(self.settings.seed, f"{stream}/{list(sizes)}")
        tokens = sample_lengths(self.settings.result_tokens, len(sizes), rng, floor=MESSAGE_TOKENS_MIN)
        return tuple(
            Piece(
                "user",
                f"Result of {child} [{self._salt(stream, child, 'end')}]:",
                length,
                answers=(child, steps - 1),
                key="result_tokens",
            )
            for (child, steps), length in zip(sizes.items(), tokens, strict=True)
        )

    def _steps(
        self, name: str, count: int, stream: str, rng: random.Random, *, sub_results: tuple[Piece, ...] = ()
    ) -> tuple[SessionStep, ...]:
        settings = self.settings
        tasks = sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, 1, rng, floor=MESSAGE_TOKENS_MIN)
        results = sample_lengths(settings.result_tokens, count, rng, floor=MESSAGE_TOKENS_MIN)
        outputs = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, count, rng)
        steps = []
        for number in range(count):
            mark = self._salt(stream, name, str(number))
            new = Piece("user", f"Result [{mark}]:", results[number], key="result_tokens")
            if number == 0:
                new = Piece("user", f"[{mark}] Task:", tasks[0], key="input_tokens")
            steps.append(
                SessionStep(
                    news=(*sub_results, new) if number == 1 else (new,),
                    output_tokens=outputs[number],
                    answer=_call(rng, mark, outputs[number], (name, number)),
                    think_s=rng.expovariate(1 / settings.tool_s) if number and settings.tool_s else None,
                    schema=CALL_SCHEMA if settings.enforce_calls else None,
                    reference={"schema": CALL_SCHEMA} if settings.enforce_calls else None,
                )
            )
        return tuple(steps)

    def _system(self, stream: str) -> Piece:
        settings = self.settings
        owner = f"tools/{stream}" if settings.cache == "cold" else "tools"
        text = (
            f"[{salt(settings.seed, owner, 0)}] You work in steps. In each, call one tool by answering with JSON of this "
            f"schema and nothing else: {json.dumps(CALL_SCHEMA, separators=(',', ':'))} Notes on the tools:"
        )
        return Piece("system", text, settings.system_tokens, owner=owner, key="system_tokens")

    def _salt(self, stream: str, name: str, what: str) -> str:
        return salt(self.settings.seed, f"{stream}/{name}/{what}", 0)


def _call(rng: random.Random, mark: str, tokens: int, step: tuple[str, int]) -> Piece:
    """Return a call written in advance: JSON where it is long enough, a few words where not even the tool's name fits."""
    tool = rng.choice(TOOLS)
    if tokens < 40:
        return Piece("assistant", tool if tokens >= len(tool) else "", tokens, answers=step)
    return Piece("assistant", f'{{"tool":"{tool}","argument":"{mark}', tokens, '"}', answers=step)
