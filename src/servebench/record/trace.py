"""The process that reads the copies of a recording and writes its trace: `python -m servebench.record.trace FILE`.

Being a process of its own it delays no token. Standard input has frames: the arguments of `Trace`, then those of
`Trace.row` for each exchange, with its bytes. At the end a line of JSON counts what was written.

The rows are those of Mooncake (github.com/kvcache-ai/Mooncake: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`);
what they do not have is called as in WEKA's traces (github.com/callanjfox/kv-cache-tester), with times in seconds.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from servebench.protocol import answer, framing
from servebench.protocol.json_values import join_text, load_object
from servebench.protocol.kinds.kind import RequestKind
from servebench.protocol.kinds.table import KINDS
from servebench.record.prompts import Hasher, Sessions, hash_id, prompt_text
from servebench.util.errors import reason_of
from servebench.util.signals import leave_stopping_to_the_parent
from servebench.util.units import CHARACTERS_PER_TOKEN, NS_PER_MS, NS_PER_S

LENGTH_BYTES = 8
NICE = 10
"""Rows can wait; engine, proxy and clients of a busy machine cannot."""
STOPS = """
    stop length tool_calls function_call content_filter end_turn max_tokens tool_use stop_sequence refusal completed incomplete
"""
"""The finish reasons that are written: another one could be content."""
TOOL_MARKS = ("tool", "function", "tool_result", "function_call_output")
"""Roles and types of what holds the result of a tool."""


def kind_at(path: str) -> RequestKind | None:
    """Return the kind of the requests that are sent to a path, None for others."""
    kinds = [kind for kind in KINDS.values() if path.partition("?")[0].endswith(kind.path)]
    return max(kinds, key=lambda kind: len(kind.path), default=None)


def frame(fields: Mapping[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """Return fields and bytes as `frames` reads them."""
    head = orjson.dumps({**fields, "sizes": [len(part) for part in parts]})
    data = b"\n".join((head, b"".join(parts)))
    return len(data).to_bytes(LENGTH_BYTES) + data


def frames(file: BinaryIO) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
    """Yield the fields and bytes of the frames in a pipe, up to its end or to one that is cut."""
    while len(length := file.read(LENGTH_BYTES)) == LENGTH_BYTES:
        if len(data := file.read(int.from_bytes(length))) == int.from_bytes(length):
            head, _, rest = data.partition(b"\n")
            fields = orjson.loads(head)
            ends = list(accumulate(fields.pop("sizes"), initial=0))
            yield fields, [rest[start:end] for start, end in pairwise(ends)]


class Trace:
    """Makes rows of exchanges; `counts` adds up what is in them."""

    def __init__(self, salt: str, block_bytes: int, began_ns: int) -> None:
        self._hasher, self._began_ns = Hasher(salt, block_bytes), began_ns
        self._sessions = Sessions(self._hasher)
        self.counts: Counter[str] = Counter()
        # tokens and bytes of the prompts that the server counted
        self._counted = (0, 0)

    def block_tokens(self) -> int:
        """Return the mean tokens of a block, by what the server has counted so far."""
        tokens, data = self._counted if self._counted[1] else (1, CHARACTERS_PER_TOKEN)
        return max(1, round(self._hasher.block_bytes * tokens / data))

    def row(
        self,
        parts: Sequence[bytes],
        *,
        path: str,
        started_ns: int,
        ended_ns: int,
        stamps: Sequence[int],
        cancelled: bool,
    ) -> dict[str, Any] | None:
        """Return the row of an exchange, None if its request cannot be read. `parts` are the body of the request and the reads of
        the response, `stamps` those of the reads."""
        kind, asked = kind_at(path), load_object(parts[0])
        if kind is None or asked is None:
            return None
        scan, response = kind.scan(), framing.decode(list(zip(stamps, parts[1:], strict=True)))
        answer.read(response, scan)
        text = prompt_text(asked, self._hasher)
        data = text.encode("utf-8", "surrogatepass")
        blocks = self._hasher.blocks(data)
        turn = self._sessions.place(data, blocks, ended_ns)
        counted, output = scan.prompt_tokens, scan.count()[0]
        if counted is not None:
            self._counted = (self._counted[0] + counted, self._counted[1] + len(data))
        prompt = _tokens(text) if counted is None else counted
        # an event with content holds a token or more
        written = max(_tokens(scan.text + scan.reasoning), len(scan.event_ns)) if output is None else output
        known = counted is not None and (output is not None or not kind.answers_text)
        streamed, model = asked.get("stream") is True, asked.get("model")
        row = {
            "timestamp": round((started_ns - self._began_ns) / NS_PER_MS, 3),
            "input_length": prompt,
            "output_length": written,
            "hash_ids": [hash_id(block) for block in blocks],
            "block_size": self.block_tokens(),
            "session_id": f"s{turn.session}",
            "type": "s" if streamed else "n",
            "api": kind.name,
            "model": join_text([model]) if isinstance(model, str) else None,
            "status": response.status,
            "stop": scan.finish_reason if scan.finish_reason in STOPS.split() else None,
            "input_types": ["tool_result" if _ends_with_tool(asked) else "text"],
            "think_time": turn.before_ns and _seconds(turn.before_ns, started_ns),
            "ttft": _seconds(started_ns, scan.event_ns[0]) if streamed and scan.event_ns else None,
            "api_time": _seconds(started_ns, ended_ns),
            "cancelled": cancelled or None,
            "lengths_by": "usage" if known else "characters",
        }
        self.counts.update(
            requests=1, sessions=turn.before_ns is None, cancelled=cancelled, failed=response.status != 200
        )
        self.counts.update(input=prompt, output=written)
        return {name: value for name, value in row.items() if value is not None}


def _tokens(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def _seconds(start_ns: int, end_ns: int) -> float:
    return round(max(0, end_ns - start_ns) / NS_PER_S, 6)


def _ends_with_tool(body: dict[str, Any]) -> bool:
    """Whether the last message of a prompt is the result of a tool, or holds one."""
    messages = body.get("messages") or body.get("input")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    held = [last, *content] if isinstance(content, list) else [last]
    return any(one.get(name) in TOOL_MARKS for one in held if isinstance(one, dict) for name in ("role", "type"))


def main() -> int:
    """Write rows until standard input ends."""
    leave_stopping_to_the_parent()
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.nice(NICE)
    given = frames(sys.stdin.buffer)
    trace = Trace(**next(given)[0])
    try:
        with Path(sys.argv[1]).open("ab", buffering=0) as file:
            for fields, parts in given:
                if (row := trace.row(parts, **fields)) is not None:
                    file.write(orjson.dumps(row) + b"\n")
    except OSError as error:
        sys.stderr.write(f"{sys.argv[1]} cannot be written: {reason_of(error)}\n")
        return 1
    sys.stdout.write(orjson.dumps(trace.counts).decode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
