"""The workload `multi_turn`: conversations in which each turn carries the whole history."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import LengthSettings, PositiveInt, WorkloadSettings
from servebench.workload.build.fill import WordList
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.seeding import generator, salt
from servebench.workload.build.sessions import History, Piece, Session, SessionStep, plan_requests

DEFAULT_INPUT_TOKENS = 48
DEFAULT_OUTPUT_TOKENS = 64
SYSTEM = "system"
"""The stream that the shared beginning comes from."""


@dataclass(frozen=True, kw_only=True)
class MultiTurnSettings(WorkloadSettings):
    """`turns` per session (a number or a distribution), `active` sessions at a time. `input_tokens` is the length of each
    user turn. `system_tokens` is a beginning that all sessions share (0: none). `think_s` is the mean of the exponential
    time before each user turn but the first. `history` says what the assistant turns in it are: `real`, the model's answers,
    or `scripted`, words written in advance that are as long as the requested answers."""

    turns: PositiveInt | LengthSettings = 4
    active: PositiveInt = 16
    system_tokens: Annotated[int, Ge(0)] = 128
    think_s: Annotated[float, Ge(0)] = 0.0
    history: History = "real"
    exact_output: bool = True


class MultiTurnWorkload(Workload):
    """Sessions of which a random active one continues next. Sessions share nothing but the system message.

    With `cache` `cold` each stream has its own system message.
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
        """Return `count` requests; the last sessions may be incomplete. Raises ConfigError when messages are too short."""
        settings = self._settings
        rng = generator(settings.seed, stream)
        return plan_requests(
            lambda user: [self._session(user, stream, rng)],
            count,
            settings,
            stream,
            active=settings.active,
            history=settings.history,
            tokenizer=tokenizer,
            rng=rng,
            words=self._words.of(tokenizer),
        )

    def _session(self, index: int, stream: str, rng: random.Random) -> Session:
        settings = self._settings
        (turns,) = sample_lengths(settings.turns, 1, rng)
        prompts = sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, turns, rng)
        answers = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, turns, rng)
        steps = []
        for turn in range(turns):
            mark = salt(settings.seed, f"{stream}/session", index * 1_000_000 + turn)
            steps.append(
                SessionStep(
                    news=(Piece("user", f"[{mark}]", prompts[turn]),),
                    output_tokens=answers[turn],
                    answer=Piece("assistant", _script(mark, answers[turn]), answers[turn], answers=(f"s{index}", turn)),
                    think_s=rng.expovariate(1 / settings.think_s) if turn and settings.think_s else None,
                )
            )
        return Session(f"s{index}", tuple(steps), before=system_message(settings, settings.system_tokens, stream))


def _script(mark: str, tokens: int) -> str:
    """Return the unique beginning of a scripted answer, where it is long enough for one."""
    return f"[{mark[::-1]}]" if tokens > len(mark) + 2 else ""


def system_message(settings: WorkloadSettings, tokens: int, stream: str) -> tuple[Piece, ...]:
    """Return the beginning that the sessions of all streams share, or with `cache` `cold` those of one stream."""
    owner = f"{SYSTEM}/{stream}" if settings.cache == "cold" else SYSTEM
    if not tokens:
        return ()
    return (Piece("system", f"[{salt(settings.seed, owner, 0)}] Help with what is asked:", tokens, owner=owner),)
