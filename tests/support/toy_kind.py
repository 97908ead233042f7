"""A kind of request that is not OpenAI's chat or completions, as somebody would add it: texts become vectors."""

from collections.abc import Mapping
from typing import Any

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Request
from servebench.protocol.answer import AnswerScan
from servebench.protocol.json_values import count_of
from servebench.protocol.kinds.kind import RequestKind


class VectorScan(AnswerScan):
    """The arrival of the vector is the one content event."""

    __slots__ = ()

    def add_chunk(self, chunk: dict[str, Any], stamp_ns: int, read_index: int) -> None:
        usage = chunk.get("usage")
        self.prompt_tokens = count_of(usage.get("prompt_tokens")) if isinstance(usage, dict) else None
        if isinstance(chunk.get("vector"), list):
            self.add_event(stamp_ns, read_index)
        if chunk.get("problem"):
            self.fail(str(chunk["problem"]))


class Vectors(RequestKind):
    """One text in, one vector out, not streamed."""

    name = "vectors"
    path = "/vectors"
    title = "vector"
    scan = VectorScan
    probe = Request(request_id="probe", api="vectors", prompt="A text.", output_tokens=0)
    lacks = ("ttft_ms", "ttfo_ms", "itl_ms", "tpot_ms", "output_throughput")
    answers_text = False

    def body(self, request: Request, model: str, dialect: Dialect, *, streamed: bool = True) -> dict[str, Any]:
        return {"model": model, "input": request.prompt, **request.extra}

    def whole_problem(self, document: Mapping[str, Any]) -> str | None:
        return None if isinstance(document.get("vector"), list) else "it has no vector"
