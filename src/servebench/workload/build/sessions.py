"""Plan sessions whose history grows, and turn their steps into requests in an order that interleaves the sessions."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from servebench.contracts.request import Message, PriorAnswer, Request, Tokenizer, answer_mark
from servebench.contracts.settings import LengthSettings, PositiveInt, WorkloadSettings
from servebench.protocol.kinds.table import kind_named
from servebench.util.errors import ConfigError
from servebench.workload.build.fill import FillingWorkload
from servebench.workload.build.requests import transcript
from servebench.workload.build.seeding import generator

MESSAGE_TOKENS_MIN = 32
"""A message of a session can be as short: at worst its salt and the words around it have one token a character."""
ThinkTime = Annotated[float, Ge(0), Le(3600)]
"""The mean time that a user or a tool takes between two steps."""
SESSION_STEPS_MAX = 10_000
"""The most steps of a session: all are planned before the first is sent."""

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class Piece:
    """A message before it is filled with words: how it begins and ends, and its length in tokens.

    With an `owner` its words follow from seed and owner alone: the message is the same in every stream. `answers` names
    the step (session and number) whose answer this message is, or quotes after its `start` if it is a user's. `key` is the
    setting of its length.
    """

    role: Role
    start: str
    tokens: int
    end: str = ""
    owner: str | None = None
    answers: tuple[str, int] | None = None
    key: str = "workload"


@dataclass(frozen=True)
class SessionStep:
    """One request of a session: its new messages, the length of its answer, and the `answer` that the history will hold."""

    news: tuple[Piece, ...]
    output_tokens: int
    answer: Piece
    think_s: float | None = None
    schema: Mapping[str, Any] | None = None
    reference: Any = None


@dataclass(frozen=True)
class Session:
    """A conversation: its steps in order, after the history `before`.

    `opens_after` names another session and how many of its steps come before this session's first; `waits_for` maps the
    number of a step to the sessions that must end before it.
    """

    name: str
    steps: tuple[SessionStep, ...]
    before: tuple[Piece, ...] = ()
    opens_after: tuple[str, int] | None = None
    waits_for: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    job: str = ""
    """The session that this one works for; itself without one."""
    job_requests: int = 0
    """The number of requests of all sessions of the job; 0: those of this session."""


def interleave(sessions: Sequence[Session], active: int, rng: random.Random) -> list[tuple[Session, int]]:
    """Return all steps as (session, number of its step), those of a session in order, `active` sessions at a time.

    Each next step belongs to a random one of the open sessions that may continue; a session that ends makes room for the
    next. Sessions that another session opens do not count as active.
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


@dataclass(frozen=True, kw_only=True)
class SessionSettings(WorkloadSettings):
    """`active` sessions at a time. `history` says what the assistant's turns in it are: `real`, the model's answers, or
    `scripted`, words written in advance that are as long as the requested answers."""

    active: PositiveInt = 16
    history: Literal["real", "scripted"] = "real"
    exact_output: bool = True


class SessionWorkload(FillingWorkload):
    """Base of the workloads whose requests carry the history of their session."""

    settings: SessionSettings

    def check(self) -> list[str]:
        """Report sessions that are too long to be planned."""
        lengths = {key: getattr(self.settings, key, 0) for key in ("turns", "steps", "sub_steps")}
        longest = {key: one.longest if isinstance(one, LengthSettings) else one for key, one in lengths.items()}
        return [
            f"workload.{key} may be {most:,}; a session has at most {SESSION_STEPS_MAX:,} steps: lower it, or set "
            f"workload.{key}.max of a distribution"
            for key, most in longest.items()
            if most > SESSION_STEPS_MAX
        ]

    def sessions_of(self, user: int, stream: str, rng: random.Random) -> Sequence[Session]:
        """Return the sessions of user number `user`."""
        raise NotImplementedError

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests; the last sessions may be incomplete. Raises ConfigError when messages are too short.

        Each message has exactly the tokens of its piece; equal pieces have equal text. A chat counts each message alone,
        without what the template adds; a completion counts the whole transcript. With real `history` a mark stands in
        place of each answer, with the text written in advance as its stand-in, and the prompt's length is unknown.
        """
        settings = self.settings
        rng = generator(settings.seed, stream)
        sessions: list[Session] = []
        planned = users = 0
        while planned < count:
            new = self.sessions_of(users, stream, rng)
            users += 1
            sessions += new
            planned += sum(len(session.steps) for session in new)
        order = interleave(sessions, settings.active, rng)[:count]
        texts = self._texts(order, rng, tokenizer)
        ids = {(session.name, number): f"{stream}-{place:05d}" for place, (session, number) in enumerate(order)}
        # -1 is the last step of a session
        ids |= {(name, -1): request_id for (name, _), request_id in ids.items()}
        made = [self._request(session, number, stream, ids, texts) for session, number in order]
        if kind_named(settings.api).takes_messages:
            return made
        counts = tokenizer.count([request.prompt or "" for request in made])
        return [
            request if request.answers else replace(request, prompt_tokens=count)
            for request, count in zip(made, counts, strict=True)
        ]

    def _request(
        self, session: Session, number: int, stream: str, ids: Mapping[tuple[str, int], str], texts: Mapping[Piece, str]
    ) -> Request:
        settings = self.settings
        step = session.steps[number]
        pieces = [
            *session.before,
            *(p for past in session.steps[:number] for p in (*past.news, past.answer)),
            *step.news,
        ]
        chat = kind_named(settings.api).takes_messages
        # the model's continuation of a completion begins with its own space
        answers = _answers(pieces, ids, texts, "" if chat else " ") if settings.history == "real" else {}
        messages = tuple(Message(piece.role, _content(piece, texts, answers)) for piece in pieces)
        return Request(
            request_id=ids[session.name, number],
            api=settings.api,
            messages=messages if chat else None,
            prompt=None if chat else transcript(messages, answers.values()),
            output_tokens=step.output_tokens,
            exact_output=settings.exact_output,
            temperature=settings.temperature,
            prompt_tokens=sum(piece.tokens for piece in pieces) if chat and not answers else None,
            session_id=f"{stream}/{session.name}",
            schema=step.schema,
            reference=step.reference,
            think_s=step.think_s,
            after=ids_before(session, number, ids),
            job=f"{stream}/{session.job or session.name}",
            job_requests=session.job_requests or len(session.steps),
            answers=tuple(answers.values()),
        )

    def _texts(
        self, order: Sequence[tuple[Session, int]], rng: random.Random, tokenizer: Tokenizer
    ) -> dict[Piece, str]:
        """Return the text of each piece. Those without an owner are made together, so that few calls count their tokens.

        Raises ConfigError when a piece is too short for its beginning and end.
        """
        pieces: dict[Piece, None] = {}
        for session, number in order:
            pieces.update(dict.fromkeys(session.before))
            for step in session.steps[: number + 1]:
                pieces.update(dict.fromkeys([*step.news, step.answer]))
        needed = tokenizer.count([piece.start + piece.end for piece in pieces])
        for piece, least in zip(pieces, needed, strict=True):
            if piece.tokens < least:
                raise ConfigError(
                    f"workload.{piece.key}={piece.tokens} is too short for a {piece.role} message: its unique beginning takes "
                    f"{least} tokens; set it to {max(least, MESSAGE_TOKENS_MIN)} or more"
                )
        made: dict[Piece, str] = {}
        for owner in dict.fromkeys(piece.owner for piece in pieces):
            owned = [piece for piece in pieces if piece.owner == owner]
            words = rng if owner is None else generator(self.settings.seed, f"{owner}/words")
            starts, lengths = [piece.start for piece in owned], [piece.tokens for piece in owned]
            texts, _ = self.fill(starts, lengths, words, tokenizer, [piece.end for piece in owned])
            made.update(zip(owned, texts, strict=True))
        return made


def _answers(
    pieces: Sequence[Piece], ids: Mapping[tuple[str, int], str], texts: Mapping[Piece, str], space: str
) -> dict[Piece, PriorAnswer]:
    """Return the real answers in a prompt, by the pieces that are or quote one."""
    return {
        piece: PriorAnswer(of=ids[piece.answers], mark=answer_mark(ids[piece.answers]), stand_in=space + texts[piece])
        for piece in pieces
        if piece.answers is not None
    }


def _content(piece: Piece, texts: Mapping[Piece, str], answers: Mapping[Piece, PriorAnswer]) -> str:
    if piece not in answers:
        return texts[piece]
    mark = answers[piece].mark
    return mark if piece.role == "assistant" else f"{piece.start}\n{mark}"


def ids_before(session: Session, number: int, ids: Mapping[tuple[str, int], str]) -> tuple[str, ...]:
    """Return what a step waits for besides the one before it: the step that opens its session, and sessions to end."""
    before = []
    if number == 0 and session.opens_after is not None:
        name, steps = session.opens_after
        before.append(ids[name, steps - 1])
    return (*before, *(ids[name, -1] for name in session.waits_for.get(number, ())))
