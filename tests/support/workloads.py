"""Requests of a workload, for tests of what is in them."""

from typing import Any

from servebench.contracts.request import Request, Tokenizer, Workload


def workload_of(kind: type[Workload], **keys: Any) -> Any:
    return kind(kind.settings_type(name=kind.name, **keys))


def requests_of(
    kind: type[Workload], tokenizer: Tokenizer, count: int = 60, stream: str = "c1-0", **keys: Any
) -> list[Request]:
    return list(workload_of(kind, **keys).requests(count, stream=stream, tokenizer=tokenizer))
