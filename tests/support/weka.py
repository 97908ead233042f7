"""A generator of agent traces in the WEKA format: those that ship with servebench (`python -m support.weka`), and unseen ones."""

import json
import random
import sys
from typing import Any

SHIPPED_SEED = 35


class Ids:
    """Numbers for blocks, new ones each."""

    def __init__(self) -> None:
        self.next = 0

    def new(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))


class Talk:
    """A session that grows: whole blocks stay, a block that was begun gets another id once it has more tokens."""

    def __init__(self, ids: Ids, size: int, shared: list[int], task: int) -> None:
        self.ids, self.size = ids, size
        self.whole, self.tokens = list(shared), len(shared) * size
        self.grow(task)

    def grow(self, tokens: int) -> None:
        self.tokens += tokens
        self.whole += self.ids.new(self.tokens // self.size - len(self.whole))

    def blocks(self) -> list[int]:
        return self.whole + self.ids.new(1 if self.tokens % self.size else 0)


def requests(rng: random.Random, talk: Talk, steps: int, start_s: float) -> tuple[list[dict[str, Any]], float]:
    """The requests of a session from `start_s` on, and when the last was answered."""
    found: list[dict[str, Any]] = []
    now_s = start_s
    for number in range(steps):
        think_s = round(rng.choice((0.02, 0.05, 0.1, 0.4)), 3) if number else 0.0
        out = rng.randint(16, 48)
        api_s = round(0.1 + 0.01 * out, 3)
        now_s = round(now_s + think_s, 3)
        ends = number + 1 == steps
        found.append(
            {
                **{"t": now_s, "type": "s", "model": "agent", "in": talk.tokens, "out": out, "hash_ids": talk.blocks()},
                **{"input_types": ["tool_result" if number else "text"], "output_types": ["text"]},
                **{"stop": "end_turn" if ends else "tool_use", "api_time": api_s, "think_time": think_s},
            }
        )
        now_s = round(now_s + api_s, 3)
        talk.grow(out + rng.randint(24, 120))
    return found, now_s


def weka_traces(
    seed: int = SHIPPED_SEED, jobs: int = 24, size: int = 32, *, scope: str = "global", absolute: bool = True
) -> list[dict[str, Any]]:
    """Jobs of three to eight steps; each third one has sub-agents, of which the last is not waited for."""
    rng, ids = random.Random(seed), Ids()
    tools, helper = ids.new(256 // size), ids.new(128 // size)
    traces = []
    for number in range(jobs):
        talk = Talk(ids, size, tools, rng.randint(40, 160))
        steps = rng.randint(3, 8)
        spawned = rng.randint(1, 2) if number % 3 == 0 else 0
        entries, now_s = requests(rng, talk, 1 if spawned else steps, 0.0)
        ends = [now_s]
        for child in range(spawned):
            inner, end_s = requests(rng, Talk(ids, size, helper, rng.randint(30, 90)), rng.randint(2, 3), now_s)
            waits = not (number and child + 1 == spawned == 2)
            ends += [end_s] if waits else []
            if not absolute:
                inner = [{**one, "t": round(one["t"] - now_s, 3)} for one in inner]
            entries.append(
                {
                    **{"t": now_s, "type": "subagent", "agent_id": f"agent_{child:03d}", "subagent_type": "Explore"},
                    **{"status": "completed" if waits else "async_launched", "requests": inner, "models": ["agent"]},
                }
            )
        if spawned:
            more, _ = requests(rng, talk, steps - 1, max(ends))
            # what the sub-agents found took as long to read as a tool
            entries += more
        traces.append(
            {
                **{"id": f"synthetic-{number:04d}", "models": ["agent"], "block_size": size, "hash_id_scope": scope},
                **{"tool_tokens": len(tools) * size, "system_tokens": 0, "requests": entries},
            }
        )
    return traces


def weka_lines(*args: Any, **named: Any) -> str:
    return "".join(json.dumps(trace, separators=(",", ":")) + "\n" for trace in weka_traces(*args, **named))


if __name__ == "__main__":
    sys.stdout.write(weka_lines())
