"""The workload `multi_turn`: conversations in which each turn carries all that was said before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import LengthSettings, PositiveInt, WorkloadSettings
from servebench.workload.lengths import sample_lengths
from servebench.workload.salt import generator, salt
from servebench.workload.sessions import History, Piece, Session, SessionStep, interleave, session_requests
from servebench.workload.unique import WordList

DEFAULT_INPUT_TOKENS = 48
DEFAULT_OUTPUT_TOKENS = 64
SYSTEM = "system"
"""Name of the stream that the common beginning comes from."""


@dataclass(frozen=True, kw_only=True)
class MultiTurnSettings(WorkloadSettings):
    """`turns` a session (a number or a distribution), `active` sessions at a time. `input_tokens` is a user's new words of
    each turn. `system_tokens` is a beginning that all sessions share (0: none). `think_s` is the mean of the exponential
    time that a user takes before each turn but the first. `history` is what stands in it for the assistant's turns: `real`,
    what the model answered, or `scripted`, words written ahead that are as long as the answers asked for."""

    turns: PositiveInt | LengthSettings = 4
    active: PositiveInt = 16
    system_tokens: Annotated[int, Ge(0)] = 128
    think_s: Annotated[float, Ge(0)] = 0.0
    history: History = "real"
    exact_output: bool = True


class MultiTurnWorkload(Workload):
    """Sessions of which a random one among the active goes on next. No session shares more than the system message.

    With `cache` `cold` each stream has a system message of its own.
    """

    name = "multi_turn"
    settings_type = MultiTurnSettings
    reference_keys = ()

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__(settings)
        assert isinstance(settings, MultiTurnSettings)
        self._settings = settings
        self._words = WordList()

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """`count` requests: whole sessions but for the last ones. Raises ConfigError when messages are too short."""
        settings = self._settings
        rng = generator(settings.seed, stream)
        sessions: list[Session] = []
        planned = 0
        while planned < count:
            sessions.append(self._session(len(sessions), stream, rng))
            planned += len(sessions[-1].steps)
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

    def _session(self, index: int, stream: str, rng: random.Random) -> Session:
        settings = self._settings
        (turns,) = sample_lengths(settings.turns, 1, rng)
        asked = sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, turns, rng)
        answered = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, turns, rng)
        steps = []
        for turn in range(turns):
            own = salt(settings.seed, f"{stream}/session", index * 1_000_000 + turn)
            steps.append(
                SessionStep(
                    news=(Piece("user", f"[{own}]", asked[turn]),),
                    output_tokens=answered[turn],
                    answer=Piece(
                        "assistant", _script(own, answered[turn]), answered[turn], answers=(f"s{index}", turn)
                    ),
                    think_s=rng.expovariate(1 / settings.think_s) if turn and settings.think_s else None,
                )
            )
        return Session(f"s{index}", tuple(steps), before=system_message(settings, settings.system_tokens, stream))


def _script(own: str, tokens: int) -> str:
    """How a scripted answer begins: unlike others, where there is room for that."""
    return f"[{own[::-1]}]" if tokens > len(own) + 2 else ""


def system_message(settings: WorkloadSettings, tokens: int, stream: str) -> tuple[Piece, ...]:
    """The beginning that all sessions share: of all streams, or with `cache` `cold` of one."""
    owner = f"{SYSTEM}/{stream}" if settings.cache == "cold" else SYSTEM
    if not tokens:
        return ()
    return (Piece("system", f"[{salt(settings.seed, owner, 0)}] Help with what is asked:", tokens, owner=owner),)
