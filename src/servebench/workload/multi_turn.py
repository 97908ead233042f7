"""The workload `multi_turn`: conversations in which each turn carries the whole history."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from servebench.contracts.settings import CountOrZero, LengthSettings, PositiveInt
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.seeding import salt
from servebench.workload.build.sessions import (
    MESSAGE_TOKENS_MIN,
    Piece,
    Session,
    SessionSettings,
    SessionStep,
    SessionWorkload,
    ThinkTime,
)

DEFAULT_INPUT_TOKENS = 48
DEFAULT_OUTPUT_TOKENS = 64
SYSTEM = "system"
"""The stream that the shared beginning comes from."""


@dataclass(frozen=True, kw_only=True)
class MultiTurnSettings(SessionSettings):
    """`turns` per session (a number or a distribution). `input_tokens` is the length of each
    user turn. `system_tokens` is a beginning that all sessions share (0: none). `think_s` is the mean of the exponential
    time before each user turn but the first."""

    turns: PositiveInt | LengthSettings = 4
    system_tokens: CountOrZero = 128
    think_s: ThinkTime = 0.0


class MultiTurnWorkload(SessionWorkload):
    """Sessions of which a random active one continues next. Sessions share nothing but the system message.

    With `cache` `cold` each stream has its own system message.
    """

    name = "multi_turn"
    settings: MultiTurnSettings
    settings_type = MultiTurnSettings

    def sessions_of(self, user: int, stream: str, rng: random.Random) -> Sequence[Session]:
        """See SessionWorkload.sessions_of."""
        settings = self.settings
        (turns,) = sample_lengths(settings.turns, 1, rng)
        prompts = sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, turns, rng, floor=MESSAGE_TOKENS_MIN)
        answers = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, turns, rng)
        steps = []
        for turn in range(turns):
            mark = salt(settings.seed, f"{stream}/session", user * 1_000_000 + turn)
            steps.append(
                SessionStep(
                    news=(Piece("user", f"[{mark}]", prompts[turn], key="input_tokens"),),
                    output_tokens=answers[turn],
                    answer=Piece("assistant", _script(mark, answers[turn]), answers[turn], answers=(f"s{user}", turn)),
                    think_s=rng.expovariate(1 / settings.think_s) if turn and settings.think_s else None,
                )
            )
        return [Session(f"s{user}", tuple(steps), before=self._system_message(stream))]

    def _system_message(self, stream: str) -> tuple[Piece, ...]:
        """Return the beginning that the sessions of all streams share, or with `cache` `cold` those of one stream."""
        settings = self.settings
        owner = f"{SYSTEM}/{stream}" if settings.cache == "cold" else SYSTEM
        if not settings.system_tokens:
            return ()
        start = f"[{salt(settings.seed, owner, 0)}] Help with what is asked:"
        return (Piece("system", start, settings.system_tokens, owner=owner, key="system_tokens"),)


def _script(mark: str, tokens: int) -> str:
    """Return the unique beginning of a scripted answer, where it is long enough for one."""
    return f"[{mark[::-1]}]" if tokens > len(mark) + 2 else ""
