"""Every reader of text that others wrote, as a function of that text. An error that a reader may raise is an answer."""

import contextlib
import io
import json
import tempfile
import traceback
from pathlib import Path

import orjson
import yaml
from rich.console import Console
from rich.text import Text

from servebench.contracts.engine import PhaseMarker
from servebench.contracts.exchange import Exchange
from servebench.contracts.point_id import PointId
from servebench.contracts.precision import seconds_of
from servebench.engine.spans import spans_of
from servebench.engine.supervisor import logs
from servebench.engine.weights import GGUF_QUANTIZATION, gguf_quantization
from servebench.foreign.readers import read_foreign
from servebench.measure.content import needles_found
from servebench.measure.derive import record
from servebench.protocol import answer, framing, sse, stream
from servebench.protocol.errors import error_text
from servebench.protocol.framing import Framing, FramingError
from servebench.protocol.json_values import load_object
from servebench.protocol.kinds.openai import ChoicesScan
from servebench.quality.rows import read_rows
from servebench.quality.scorers import gsm8k, mmlu, structured
from servebench.registry.registry import registry
from servebench.report.terminal.display import shown
from servebench.store.layout import slug
from servebench.telemetry.engine_metrics import parse_series
from servebench.util import redaction, safe_text, secret_patterns
from servebench.util.bounded_file import load_yaml, parse_json
from servebench.util.errors import ServebenchError
from servebench.workload.sources.dataset import load_dataset_rows
from servebench.workload.sources.trace_files import trace_rows
from servebench_graders import humaneval, verdicts
from support.records import phase_facts

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
READ_BYTES = 65_536


def _pieces(data, size=READ_BYTES):
    return [(n, data[start : start + size]) for n, start in enumerate(range(0, len(data), size))]


def _chunked(data):
    return HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


def _event(text):
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def _record(data):
    exchange = Exchange(
        request_id="r", session_id=None, scheduled_ns=0, connect_started_ns=None, connected_ns=None, sent_ns=0,
        ended_ns=1, outcome="complete", error=None, stamp_source="kernel", reads=_pieces(data),
    )  # fmt: skip
    return record(exchange, phase_facts(planned={"r": (None, 4, False)}))


def _framing(data):
    framing = Framing()
    for _, piece in _pieces(data, 512):
        with contextlib.suppress(FramingError):
            framing.feed(piece)


def _first_content(data):
    content = answer.FirstContent(ChoicesScan())
    for _, piece in _pieces(data, 512):
        content.feed(piece)
    content.finish()


def _sse_parts(data):
    return sse.parse(_pieces(data, 512))


def _in_file(read, name):
    def reader(text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8", errors="replace", newline="")
            return read(path)

    return reader


def _log(path):
    """All that reads an engine's log while it starts and when it failed."""
    engines = [registry().engine(name) for name in registry().kinds["engine"]]
    for engine in engines:
        logs.PhaseReader(path, engine.phases).read()
        logs.explain_failure("it ended", path, engine.hints)
    return logs.last_lines(path)


def _growing_log(path):
    """A log that is read while it grows, without the end of a line."""
    text = path.read_text(encoding="utf-8", errors="replace").replace("\n", " ")
    path.write_text("")
    reader = logs.PhaseReader(path, [PhaseMarker("x", "never there")])
    for start in range(0, len(text), 4096):
        with path.open("a") as log:
            log.write(text[start : start + 4096])
        reader.read()


def _gguf(path):
    name = path.read_bytes()
    path.write_bytes(
        b"GGUF"
        + (3).to_bytes(4, "little")
        + bytes(8)
        + (1 << 30).to_bytes(8, "little")
        + len(name).to_bytes(8, "little")
        + name
    )
    return gguf_quantization(path)


def _traceback(text):
    try:
        raise ValueError(text)
    except ValueError:
        return redaction.redact_text(traceback.format_exc())


def _printed(text):
    console = Console(file=io.StringIO(), width=100)
    console.print(Text(shown(text)))


def _redacted_document(text):
    third = len(text) // 3
    return redaction.redact({"a": [text[:third], {"b": text[third : 2 * third]}], "words": ["-x", text[2 * third :]]})


READERS = {
    "redaction": redaction.redact_text,
    "redaction of a document": _redacted_document,
    "names of secrets": secret_patterns.secret_name,
    "known secrets": lambda text: redaction.without_known(text, ["abcdef", "aaaaaaaaaaaaaaaa", "-a.-a.-a."]),
    "tracebacks": _traceback,
    "terminal": safe_text.clean_terminal,
    "lines": safe_text.clean_line,
    "markdown": safe_text.clean_markdown,
    "csv": safe_text.clean_csv,
    "csv cells": safe_text.csv_text,
    "printed": _printed,
    "engine's log": _in_file(_log, "engine.log"),
    "growing log": _in_file(_growing_log, "engine.log"),
    "http": lambda text: framing.decode(_pieces(text.encode())),
    "http head": lambda text: framing.decode(_pieces(b"HTTP/1.1 200 OK\r\n" + text.encode())),
    "http body": lambda text: framing.decode(_pieces(_chunked(text.encode()))),
    "framing": lambda text: _framing(_chunked(text.encode())),
    "framing of a head": lambda text: _framing(b"HTTP/1.1 200 OK\r\nX: " + text.encode()),
    "chunks": lambda text: _framing(HEAD + text.encode()),
    "events": lambda text: _sse_parts(text.encode()),
    "event's data": lambda text: _sse_parts(b"data: " + text.encode() + b"\n\n"),
    "first content": lambda text: _first_content(_chunked(text.encode())),
    "first content of an event": lambda text: _first_content(_chunked(_event(text))),
    "stream": lambda text: stream.read(_pieces(_chunked(text.encode())), ChoicesScan()),
    "stream of an event": lambda text: stream.read(_pieces(_chunked(_event(text) * 2)), ChoicesScan()),
    "record": lambda text: _record(_chunked(text.encode())),
    "record of a text": lambda text: _record(_chunked(_event(text))),
    "answer": lambda text: _record(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(text.encode()), text.encode())
    ),
    "error": lambda text: error_text(text.encode()),
    "error in JSON": lambda text: error_text(orjson.dumps({"error": {"message": text}})),
    "JSON object": lambda text: load_object(text.encode()),
    "JSON": parse_json,
    "YAML": load_yaml,
    "metrics": lambda text: list(parse_series(text.encode())),
    "metrics of a label": lambda text: list(parse_series(b'a{b="' + text.encode() + b'"} 1\n')),
    "metrics' help": lambda text: list(parse_series(b"# HELP a " + text.encode() + b"\n# TYPE a counter\na 1\n")),
    "metrics' value": lambda text: list(parse_series(b"a " + text.encode() + b"\n")),
    "spans": lambda text: list(spans_of(text.encode(), "json", ["x"])),
    "spans of protobuf": lambda text: list(spans_of(text.encode(), "protobuf", ["x"])),
    "numbers of an answer": gsm8k.number_of,
    "letter of an answer": mmlu.letter_of,
    "code of an answer": lambda text: humaneval.code_of(text, "f"),
    "code of a block": lambda text: humaneval.code_of(f"```python\n{text}\n```", "f"),
    "code that begins": lambda text: humaneval.code_of(f"def f():\n    return 1\n{text}", "f"),
    "program": lambda text: humaneval.program_of({"prompt": text, "entry_point": "f", "test": ""}, text),
    "document of an answer": structured.document_of,
    "score": lambda text: verdicts.score_of(text, 10),
    "score's number": lambda text: verdicts.score_of(f"score: {text}", 10),
    "preference": verdicts.better_of,
    "needles": lambda text: needles_found(text, {"needles": [{"answer": "5"}]}),
    "questions": _in_file(read_rows, "rows.jsonl"),
    "rows of a data set": _in_file(lambda path: load_dataset_rows(str(path)), "data.json"),
    "lines of a data set": _in_file(lambda path: load_dataset_rows(str(path)), "data.jsonl"),
    "trace": _in_file(lambda path: trace_rows(str(path)), "trace.jsonl"),
    "trace in a table": _in_file(lambda path: trace_rows(str(path)), "trace.csv"),
    "times of a trace": lambda text: _in_file(lambda path: trace_rows(str(path)), "trace.csv")(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:50,1,1\n" + json.dumps(text) + ",1,1\n"
    ),
    "results of others": _in_file(read_foreign, "result.json"),
    "values of others": lambda text: _in_file(read_foreign, "result.json")(
        json.dumps({"model_id": text, "mean_ttft_ms": text, "completed": 1, "backend": text, "max_concurrency": text})
    ),
    "header of weights": _in_file(_gguf, "x.gguf"),
    "name of weights": GGUF_QUANTIZATION.findall,
    "points' names": PointId.parse,
    "repeats of points": lambda text: PointId.parse(f"c1-r{text}"),
    "durations": lambda text: seconds_of("x", text),
    "slugs": slug,
}

EXPECTED = (ServebenchError, ValueError, ArithmeticError, AttributeError, RecursionError, yaml.YAMLError)


def read_with(name, text):
    """Read a text; what a reader raises for a text that is none of its kind is as good as an answer."""
    with contextlib.suppress(*EXPECTED):
        READERS[name](text)
