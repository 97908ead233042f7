"""Convert the requests and records of the measured load to items and answers."""

from collections.abc import Iterator, Sequence
from typing import Any

from servebench.contracts.quality import Item, ItemAnswer
from servebench.contracts.request import Request
from servebench.contracts.results import Record
from servebench.util.units import NS_PER_MS

SAME = ("outcome", "http_status", "finish_reason", "prompt_tokens", "output_tokens", "sent_ns", "ended_ns")
"""What an answer takes over from a record under the same names."""


def answered_requests(requests: Sequence[Request], records: Sequence[Record]) -> Iterator[tuple[Request, Record]]:
    """Yield each request with its record, in the order of the records, without warm-up and abandoned ones."""
    by_id = {request.request_id: request for request in requests}
    for record in records:
        if record.measured and record.outcome != "abandoned" and record.request_id in by_id:
            yield by_id[record.request_id], record


def item_of(request: Request, expected: str, task: str | None = None) -> Item:
    """Return the request as an item."""
    prompt = request.prompt if request.prompt is not None else "\n".join(m.content for m in request.messages or ())
    return Item(
        item_id=request.request_id, prompt=prompt, expected=expected, max_tokens=request.output_tokens, task=task
    )


def answer_of(record: Record) -> ItemAnswer:
    """Return the record as an answer, without its thinking. One that is not complete has an error instead of a text."""
    fields: dict[str, Any] = {"text": record.text, "reasoning": record.reasoning}
    if record.outcome != "ok":
        fields = {"text": "", "error": record.error or record.outcome.replace("_", " ")}
    latency_ms = None if record.sent_ns is None else (record.ended_ns - record.sent_ns) / NS_PER_MS
    fields |= {name: getattr(record, name) for name in SAME}
    return ItemAnswer(item_id=record.request_id, latency_ms=latency_ms, **fields).to_grade()
