"""Rows hold times, lengths and hashes of what was passed on, and nothing of what it says."""

import io
import resource
import subprocess
import sys

import orjson
import pytest

from servebench.record.trace import Trace, frame, frames, kind_at
from servebench.workload.sources.trace_files import trace_rows
from support.servers import SSE_HEAD, content_event, event, reply, stream_end

MS = 1_000_000
CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are terse. " * 40}


def body(*texts, **more):
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"model": "tiny", "messages": [SYSTEM, *turns], "stream": True, **more}


def streamed(words=3, **usage):
    return [SSE_HEAD, *(content_event(" word") for _ in range(words)), stream_end(**usage)]


class Recorded:
    """Makes rows of exchanges whose reads come 10 ms apart, the first 50 ms after the request."""

    def __init__(self, block_bytes=64):
        self.trace = Trace(salt="salt", block_bytes=block_bytes, began_ns=0)

    def row(self, asked, reads, *, at_ms=0, path=CHAT, cancelled=False):
        stamps = [(at_ms + 50 + 10 * number) * MS for number in range(len(reads))]
        ended = stamps[-1] if stamps else at_ms * MS
        data = asked if isinstance(asked, bytes) else orjson.dumps(asked)
        return self.trace.row(
            [data, *reads], path=path, started_ns=at_ms * MS, ended_ns=ended, stamps=stamps, cancelled=cancelled
        )


def test_lengths_are_those_of_the_usage():
    row = Recorded().row(body("hello"), streamed(prompt_tokens=181, output_tokens=3), at_ms=1500)
    assert {name: row[name] for name in ("timestamp", "input_length", "output_length", "status", "stop", "lengths_by")} == {
        "timestamp": 1500.0, "input_length": 181, "output_length": 3, "status": 200, "stop": "length", "lengths_by": "usage",
    }  # fmt: skip
    assert (row["ttft"], row["api_time"]) == (0.06, 0.09)
    assert (row["type"], row["model"], row["session_id"]) == ("s", "tiny", "s1")
    assert len(row["hash_ids"]) == 10


def test_without_usage_an_answer_has_a_token_an_event_or_four_characters():
    done = [SSE_HEAD, *(content_event("x") for _ in range(7))]
    row = Recorded().row(body("hello"), done)
    assert (row["output_length"], row["lengths_by"]) == (7, "characters")
    row = Recorded().row(body("hello"), [SSE_HEAD, content_event("x" * 100)])
    assert row["output_length"] == 25
    assert row["input_length"] > 150


def test_an_answer_that_is_not_streamed_has_no_ttft():
    answer = {
        "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }
    row = Recorded().row(body("hello", stream=False), [reply(200, answer)])
    assert (row["type"], row["input_length"], row["output_length"]) == ("n", 9, 1)
    assert "ttft" not in row


def test_a_cancelled_request_says_so():
    row = Recorded().row(body("hello"), [SSE_HEAD, content_event(" word")], cancelled=True)
    assert (row["cancelled"], row["output_length"], row["status"]) == (True, 2, 200)


def test_errors_and_a_service_that_went_away_are_rows():
    recorded = Recorded()
    assert recorded.row(body("hello"), [reply(429, {"error": {"message": "slow down"}})])["status"] == 429
    assert "status" not in recorded.row(body("hello again"), [])
    assert recorded.trace.counts["failed"] == 2


def test_a_gap_before_a_turn_is_that_of_a_tool_if_it_brings_a_result():
    recorded = Recorded()
    recorded.row(body("hello"), streamed())
    asked = body("hello", "call")
    asked["messages"].append({"role": "tool", "tool_call_id": "1", "content": "42"})
    row = recorded.row(asked, streamed(), at_ms=1090)
    assert (row["session_id"], row["think_time"], row["input_types"]) == ("s1", 1.0, ["tool_result"])
    asked["messages"] += [
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": [{"type": "text", "text": "thanks"}]},
    ]
    assert recorded.row(asked, streamed(), at_ms=9000)["input_types"] == ["text"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (CHAT, "chat"), ("/v1/completions?x=1", "completions"), ("/some/where/v1/chat/completions", "chat"),
        ("/v1/models", None), ("/metrics", None),
    ],
)  # fmt: skip
def test_paths_have_kinds(path, name):
    found = kind_at(path)
    assert (found and found.name) == name


def test_what_is_no_request_has_no_row():
    assert Recorded().row(b"not JSON", streamed()) is None
    assert Recorded().row(body("hello"), streamed(), path="/tokenize") is None


def test_an_unknown_finish_reason_is_not_written():
    odd = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "canary"}]})
    assert "stop" not in Recorded().row(body("hello"), [SSE_HEAD, content_event("x"), odd])


def test_the_workload_reads_what_was_written(tmp_path):
    recorded = Recorded(block_bytes=256)
    asked = [body("hello"), body("hello", "hi", "and now? " * 60)]
    rows = [
        recorded.row(one, streamed(prompt_tokens=200, output_tokens=5), at_ms=2000 - 1000 * n)
        for n, one in enumerate(asked)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    later, sooner = trace_rows(str(file))[::-1]
    assert (sooner.arrival_s, later.arrival_s) == (0.0, 1.0)
    assert (later.input_tokens, later.output_tokens) == (200, 5)
    assert sooner.blocks[: len(later.blocks)] == later.blocks
    assert len(sooner.blocks) > len(later.blocks) > 1
    assert (later.block_tokens, sooner.block_tokens) == (rows[0]["block_size"], rows[1]["block_size"])


def test_a_block_has_as_many_tokens_as_the_server_counts_in_it():
    recorded = Recorded(block_bytes=256)
    assert recorded.row(body("hello"), [SSE_HEAD, content_event("x")])["block_size"] == 64
    counted = len(body("hello")["messages"][0]["content"]) // 2
    assert 110 < recorded.row(body("hello"), streamed(prompt_tokens=counted))["block_size"] <= 128


def test_a_cut_frame_ends_the_frames():
    first, second = frame({"n": 1}, [b"a\nb", b"", b"c"]), frame({"n": 2}, [b"d"])
    whole = [({"n": 1}, [b"a\nb", b"", b"c"])]
    for cut in range(len(second)):
        assert list(frames(io.BytesIO(first + second[:cut]))) == whole
    assert list(frames(io.BytesIO(first + second))) == [*whole, ({"n": 2}, [b"d"])]


def test_a_disk_that_is_full_is_one_line(tmp_path):
    """The rows before it stay; the proxy goes on without this process."""
    file = tmp_path / "a.jsonl"
    parts = [orjson.dumps(body("hello")), *streamed(prompt_tokens=181, output_tokens=3)]
    times = {"started_ns": 0, "ended_ns": MS, "stamps": [MS] * (len(parts) - 1)}
    sent = frame({"salt": "salt", "block_bytes": 64, "began_ns": 0})
    sent += frame({"path": CHAT, "cancelled": False, **times}, parts) * 9
    done = subprocess.run(
        [sys.executable, "-P", "-m", "servebench.record.trace", str(file)],
        input=sent, capture_output=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"")
    (line,) = done.stderr.decode().splitlines()
    assert str(file) in line
    assert orjson.loads(file.read_bytes().splitlines()[0])["input_length"] == 181
