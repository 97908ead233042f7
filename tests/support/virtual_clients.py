"""Run the emulator's step loop on a virtual clock with a closed loop of clients: hundreds of points in seconds."""

from dataclasses import dataclass

from servebench.contracts.emulation import EmulationSpec
from servebench.emulator.cost import Profile, StepCost, with_profile
from servebench.emulator.scheduler import BatchScheduler, EmulatedRequest
from servebench.emulator.text import CHARACTERS, answer_pieces, prompt_key


@dataclass(frozen=True, kw_only=True)
class Clients:
    """A closed loop: `requests` in all, at most `concurrency` at once, all of the first at once. The first `shared_tokens` of a
    prompt are those of one of `documents`."""

    concurrency: int
    requests: int
    input_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    documents: int = 1

    def request(self, index: int) -> EmulatedRequest:
        own = prompt_of(index, self.input_tokens - self.shared_tokens)
        prompt = prompt_of(-1 - index % self.documents, self.shared_tokens) + own
        pieces = answer_pieces(index, self.output_tokens)
        return EmulatedRequest(key=index, prompt=prompt, prompt_tokens=self.input_tokens, pieces=pieces)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a client would report, in the order in which the requests ended."""

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
    core = BatchScheduler(spec, StepCost(spec, profile))
    numbers, sent_s = iter(range(clients.requests)), dict[int, float]()
    done: list[tuple[EmulatedRequest, float]] = []

    def send(count: int, now_s: float) -> None:
        for _, index in zip(range(count), numbers, strict=False):
            sent_s[index] = now_s
            core.submit(clients.request(index), now_s)

    now_s = 0.0
    send(clients.concurrency, now_s)
    while (ready_s := core.next_ready_s()) is not None:
        now_s = max(now_s, ready_s)
        if (step := core.begin(now_s)) is None:
            break
        now_s = step.ends_s
        ended = [asked for asked, _ in core.end(step, now_s) if asked.generated >= asked.answer_tokens]
        done += [(asked, now_s) for asked in ended]
        send(len(ended), now_s)
    return Measured(
        throughput_tok_s=sum(asked.answer_tokens for asked, _ in done) / now_s,
        ttft_ms=tuple(((asked.first_s or 0.0) - sent_s[asked.key]) * 1e3 for asked, _ in done),
        e2e_ms=tuple((ended_s - sent_s[asked.key]) * 1e3 for asked, ended_s in done),
        seconds=now_s,
    )
