"""Run the emulator's step loop on a virtual clock with a closed loop of clients: hundreds of points in seconds."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator.cost import Profile, StepCost, with_profile
from servebench.emulator.scheduler import BatchScheduler, EmulatedRequest
from servebench.emulator.text import CHARACTERS, answer_pieces, prompt_key


@dataclass(frozen=True, kw_only=True)
class Clients:
    """A closed loop: `requests` in all (or for `duration_s`), at most `concurrency` at once, all of the first at once.
    The first `shared_tokens` of a prompt are those of one of `documents`.

    `connections`: at most so many reach the server; what waits for one of them is already being timed, as in a client
    whose pool is smaller than its semaphore.
    """

    concurrency: int
    input_tokens: int
    output_tokens: int
    requests: int | None = None
    connections: int | None = None
    shared_tokens: int = 0
    documents: int = 1
    duration_s: float | None = None
    warmup_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One simulated request: the seconds at which it was sent, and of its first and last token."""

    sent_s: float
    first_s: float
    last_s: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a client would report."""

    requests: tuple[Timed, ...]
    throughput_tok_s: float
    ttft_ms: tuple[float, ...]
    e2e_ms: tuple[float, ...]
    seconds: float


def prompt_of(index: int, tokens: int) -> str:
    """Return a prompt of this length that shares no token with another."""
    head = f"{index:>8}"
    return (head + "".join(answer_pieces(prompt_key(index, head), tokens)))[: tokens * CHARACTERS]


def simulate(spec: EmulationSpec, clients: Clients, profile: Profile | None = None) -> Measured:
    """Simulate the load until the last answer; deterministic."""
    spec = with_profile(spec, profile)
    loop = _Loop(BatchScheduler(spec, StepCost(spec, profile)), clients)
    return _measured(loop.run(), clients)


class _Loop:
    def __init__(self, core: BatchScheduler, clients: Clients) -> None:
        self._core = core
        self._clients = clients
        self._next = 0
        self._started: dict[int, float] = {}
        self._pool: list[tuple[float, int]] = []
        self._open = 0
        self._done: list[Timed] = []

    def _more(self, now_s: float) -> bool:
        clients = self._clients
        if clients.requests is not None:
            return self._next < clients.requests
        return now_s < (clients.duration_s or 0.0)

    def _start(self, now_s: float) -> None:
        """Send the next request of a stream, or queue it for a connection."""
        if self._more(now_s):
            heapq.heappush(self._pool, (now_s, self._next))
            self._next += 1

    def _connect(self, now_s: float) -> None:
        clients = self._clients
        while self._pool and (clients.connections is None or self._open < clients.connections):
            started_s, index = heapq.heappop(self._pool)
            self._open += 1
            prompt = self._prompt(index)
            asked = EmulatedRequest(
                key=index,
                prompt=prompt,
                prompt_tokens=clients.input_tokens,
                pieces=answer_pieces(index, clients.output_tokens),
            )
            self._started[index] = started_s
            self._core.submit(asked, now_s)

    def _prompt(self, index: int) -> str:
        clients = self._clients
        own = prompt_of(index, clients.input_tokens - clients.shared_tokens)
        return prompt_of(-1 - index % clients.documents, clients.shared_tokens) + own

    def run(self) -> list[Timed]:
        """Return all requests, in the order in which they ended."""
        now_s = 0.0
        for _ in range(self._clients.concurrency):
            self._start(now_s)
        self._connect(now_s)
        while (ready_s := self._core.next_ready_s()) is not None:
            now_s = max(now_s, ready_s)
            step = self._core.begin(now_s)
            if step is None:
                break
            now_s = step.ends_s
            for asked, _ in self._core.end(step, now_s):
                if asked.generated >= asked.answer_tokens:
                    self._ended(asked, now_s)
            self._connect(now_s)
        return self._done

    def _ended(self, asked: EmulatedRequest, now_s: float) -> None:
        assert asked.first_s is not None
        self._open -= 1
        sent_s = self._started.pop(asked.key)
        self._done.append(Timed(sent_s=sent_s, first_s=asked.first_s, last_s=now_s, tokens=asked.answer_tokens))
        self._start(now_s)


def _measured(done: Sequence[Timed], clients: Clients) -> Measured:
    """Return the throughput of the whole run, or for a duration that of the window after the warm-up."""
    if clients.duration_s is not None:
        start_s, end_s = clients.warmup_s, clients.duration_s
        inside = [one for one in done if start_s <= one.sent_s <= end_s and one.last_s <= end_s]
        # tokens come evenly between the first and the last
        tokens = sum(_inside(one, start_s, end_s) for one in done)
    else:
        start_s, end_s = 0.0, max((one.last_s for one in done), default=0.0)
        inside = list(done)
        tokens = sum(one.tokens for one in done)
    seconds = end_s - start_s
    return Measured(
        requests=tuple(inside),
        throughput_tok_s=tokens / seconds if seconds else 0.0,
        ttft_ms=tuple((one.first_s - one.sent_s) * 1e3 for one in inside),
        e2e_ms=tuple((one.last_s - one.sent_s) * 1e3 for one in inside),
        seconds=seconds,
    )


def _inside(one: Timed, start_s: float, end_s: float) -> float:
    span = one.last_s - one.first_s
    if span <= 0:
        return float(one.tokens) if start_s <= one.last_s <= end_s else 0.0
    overlap = max(0.0, min(one.last_s, end_s) - max(one.first_s, start_s))
    return one.tokens * overlap / span
