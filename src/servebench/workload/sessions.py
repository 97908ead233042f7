"""Conversations whose history grows: turns written ahead, sent as requests in an order in which sessions mingle."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from servebench.contracts.request import Answer, Message, Request, Tokenizer, answer_mark
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.salt import SALT_TOKENS_MAX, generator
from servebench.workload.unique import fill

Role = Literal["system", "user", "assistant"]
History = Literal["real", "scripted"]
"""Where the model's turns in a history come from: what it answered, or what was written ahead."""

_SPOKEN = {"system": "", "user": "User: ", "assistant": "Assistant: "}


@dataclass(frozen=True)
class Piece:
    """A message before its words: how it begins, how long it is to be in tokens, and how it ends.

    With an `owner` its words follow from seed and owner alone: the message is the same in every stream. `answers` is the
    session and the number of the step whose answer it is, or brings (a user's piece); `start` then stands before it.
    """

    role: Role
    start: str
    tokens: int
    end: str = ""
    owner: str | None = None
    answers: tuple[str, int] | None = None


@dataclass(frozen=True)
class SessionStep:
    """One request of a session: what is new in it, how long the answer may be, and the `answer` that history will have."""

    news: tuple[Piece, ...]
    output_tokens: int
    answer: Piece
    think_s: float | None = None
    schema: Mapping[str, Any] | None = None
    reference: Any = None


@dataclass(frozen=True)
class Session:
    """A conversation: its steps in order. `before` is history that it begins with; `opens_after` the session and the
    number of its steps that come before this one's first; `waits_for` of a step's number the sessions to end first."""

    name: str
    steps: tuple[SessionStep, ...]
    before: tuple[Piece, ...] = ()
    opens_after: tuple[str, int] | None = None
    waits_for: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def interleave(sessions: Sequence[Session], active: int, rng: random.Random) -> list[tuple[Session, int]]:
    """All steps, as (session, number of its step), those of a session in order, `active` sessions at a time.

    The next step is that of a random one among the open sessions that may go on; a session that ended makes room for
    the next. Sessions that another one opens count no place of their own.
    """
    waiting = [session for session in sessions if session.opens_after is None]
    opened_by: dict[tuple[str, int], list[Session]] = {}
    for session in sessions:
        if session.opens_after is not None:
            opened_by.setdefault(session.opens_after, []).append(session)
    done: dict[str, int] = {}
    steps_of = {session.name: len(session.steps) for session in sessions}
    opened: list[Session] = []
    order: list[tuple[Session, int]] = []
    while opened or waiting:
        while waiting and sum(session.opens_after is None for session in opened) < active:
            opened.append(waiting.pop(0))
        ready = [
            session
            for session in opened
            if all(done.get(name, 0) == steps_of[name] for name in session.waits_for.get(done.get(session.name, 0), ()))
        ]
        session = rng.choice(ready)
        number = done.get(session.name, 0)
        order.append((session, number))
        done[session.name] = number + 1
        opened += opened_by.get((session.name, number + 1), [])
        if number + 1 == len(session.steps):
            opened.remove(session)
    return order


def session_requests(
    order: Sequence[tuple[Session, int]],
    settings: WorkloadSettings,
    stream: str,
    *,
    tokenizer: Tokenizer,
    rng: random.Random,
    words: Sequence[str],
    history: History,
) -> list[Request]:
    """The requests of these steps. Each message has exactly the tokens of its piece, equal pieces equal text.

    As a chat each message is counted alone, what the template adds being left out; as a completion the whole transcript
    is counted. With real `history` answers have a mark in their place and what is written ahead is their stand-in; prompts
    then have no length that could be told before. Raises ConfigError when a piece is too short for its beginning and end.
    """
    texts = _texts(order, settings.seed, tokenizer, rng, words)
    ids = {(session.name, number): f"{stream}-{place:05d}" for place, (session, number) in enumerate(order)}
    last = {name: request_id for (name, _), request_id in ids.items()}
    made: list[Request] = []
    completions: list[str] = []
    for place, (session, number) in enumerate(order):
        pieces = list(session.before)
        for step in session.steps[:number]:
            pieces += [*step.news, step.answer]
        step = session.steps[number]
        pieces += step.news
        chat = settings.api == "chat"
        # what a completion goes on with begins with its own blank
        answers = _answers(pieces, ids, texts, "" if chat else " ") if history == "real" else {}
        messages = tuple(Message(piece.role, _said(piece, texts, answers)) for piece in pieces)
        if not chat:
            spoken = [
                f"Assistant:{message.content}"
                if message.role == "assistant" and piece in answers
                else _SPOKEN[message.role] + message.content
                for piece, message in zip(pieces, messages, strict=True)
            ]
            completions.append("\n".join([*spoken, "Assistant:"]))
        made.append(
            Request(
                request_id=f"{stream}-{place:05d}",
                messages=messages if chat else None,
                prompt=None if chat else completions[-1],
                output_tokens=step.output_tokens,
                exact_output=settings.exact_output,
                temperature=settings.temperature,
                prompt_tokens=sum(piece.tokens for piece in pieces) if chat and not answers else None,
                session_id=f"{stream}/{session.name}",
                schema=step.schema,
                reference=step.reference,
                think_s=step.think_s,
                after=_waits(session, number, ids, last),
                answers=tuple(answers.values()),
            )
        )
    if not completions:
        return made
    counts = tokenizer.count(completions)
    return [
        request if request.answers else replace(request, prompt_tokens=count)
        for request, count in zip(made, counts, strict=True)
    ]


def _answers(
    pieces: Sequence[Piece], ids: Mapping[tuple[str, int], str], texts: Mapping[Piece, str], blank: str
) -> dict[Piece, Answer]:
    """Which pieces of a prompt are, or bring, a real answer."""
    return {
        piece: Answer(of=ids[piece.answers], mark=answer_mark(ids[piece.answers]), stand_in=blank + texts[piece])
        for piece in pieces
        if piece.answers is not None
    }


def _said(piece: Piece, texts: Mapping[Piece, str], answers: Mapping[Piece, Answer]) -> str:
    if piece not in answers:
        return texts[piece]
    mark = answers[piece].mark
    return mark if piece.role == "assistant" else f"{piece.start}\n{mark}"


def _waits(
    session: Session, number: int, ids: Mapping[tuple[str, int], str], last: Mapping[str, str]
) -> tuple[str, ...]:
    """What a step waits for beside the one before it: the step that opens its session, and sessions to end first."""
    before = []
    if number == 0 and session.opens_after is not None:
        name, steps = session.opens_after
        before.append(ids[name, steps - 1])
    return (*before, *(last[name] for name in session.waits_for.get(number, ())))


def _texts(
    order: Sequence[tuple[Session, int]], seed: int, tokenizer: Tokenizer, rng: random.Random, words: Sequence[str]
) -> dict[Piece, str]:
    """The text of each piece, those without an owner all at once: an engine that counts is asked few times."""
    pieces: dict[Piece, None] = {}
    for session, number in order:
        for piece in session.before:
            pieces[piece] = None
        for step in session.steps[: number + 1]:
            pieces.update(dict.fromkeys([*step.news, step.answer]))
    listed = list(pieces)
    needed = tokenizer.count([piece.start + piece.end for piece in listed])
    for piece, least in zip(listed, needed, strict=True):
        if piece.tokens < least:
            raise ConfigError(
                f"a message of {piece.tokens} tokens for the {piece.role} is too short: it begins with {least} tokens that "
                f"make it unlike others; give lengths of {max(least, SALT_TOKENS_MAX)} or more in workload"
            )
    made: dict[Piece, str] = {}
    for owner in dict.fromkeys(piece.owner for piece in listed):
        some = [piece for piece in listed if piece.owner == owner]
        texts, _ = fill(
            [piece.start for piece in some],
            [piece.tokens for piece in some],
            rng if owner is None else generator(seed, f"{owner}/words"),
            tokenizer,
            words=words,
            ends=[piece.end for piece in some],
        )
        made.update(zip(some, texts, strict=True))
    return made
