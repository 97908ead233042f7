"""The command records real traffic of an engine, without a word of it, and its trace survives what ends it."""

import hashlib
import json
import signal
import threading
from contextlib import contextmanager

import httpx
import pytest

from support.commands import servebench_started
from support.servers import SSE_HEAD, ScriptedServer, content_event, own_port, refusing_port, stream_end
from support.waiting import wait_until

CANARY = "xylophone-canary"
LIMIT_S = 60.0


@contextmanager
def recording(folder, url, *words):
    """Run the command; yields the process, the address of the proxy, and the file."""
    port, file = own_port(), folder / "trace.jsonl"
    with servebench_started(folder, "record", "--to", str(file), "--port", str(port), *words, "--", url) as process:
        assert f"http://127.0.0.1:{port}" in process.stdout.readline()
        yield process, f"http://127.0.0.1:{port}", file


def rows_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def answering(connection, _request):
    """Stream a canary; an answer that asks for it stays open."""
    connection.sendall(SSE_HEAD + content_event(CANARY) * 3)
    if b"stay" in _request.body:
        connection.recv(1)
        return False
    connection.sendall(stream_end(prompt_tokens=40, output_tokens=3))


def ask(url, text, **more):
    tools = [{"type": "function", "function": {"name": "look", "description": CANARY}}]
    call = {"id": CANARY, "type": "function", "function": {"name": "look", "arguments": json.dumps({"at": CANARY})}}
    messages = [
        {"role": "user", "content": text},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": CANARY, "content": CANARY},
    ]
    body = {"model": "tiny", "messages": messages, "tools": tools, "stream": True, "user": CANARY, **more}
    return httpx.post(
        f"{url}/v1/chat/completions?key={CANARY}",
        json=body,
        headers={"Authorization": f"Bearer {CANARY}", "X-Any": CANARY},
    )


@pytest.mark.slow
def test_nothing_that_was_said_is_in_the_trace(tmp_path):
    with ScriptedServer(answering) as server, recording(tmp_path, server.url) as (process, url, file):
        answer = ask(url, f"{CANARY} " * 100)
        assert answer.text.count(CANARY) == 3
        assert server.requests[0].headers["authorization"] == f"Bearer {CANARY}"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, err) == (0, "")
        (row,) = rows_of(file)
        assert (row["input_length"], row["output_length"], row["model"]) == (40, 3, "tiny")
        assert len(row["hash_ids"]) > 5
        assert CANARY not in file.read_text() + out
        assert f"workload=trace workload.path={file} load=replay load.requests=1 model.name=tiny" in out
        for name in ("md5", "sha1", "sha256", "blake2b"):
            digest = hashlib.new(name, CANARY.encode())
            assert digest.hexdigest()[:12] not in file.read_text()
            assert str(int.from_bytes(digest.digest()[:8]) >> 12) not in file.read_text()


@pytest.mark.slow
def test_a_recording_of_other_requests_says_what_is_recorded(tmp_path):
    """Ollama's own API, for one."""
    with ScriptedServer(answering) as server, recording(tmp_path, server.url) as (process, url, file):
        assert httpx.post(f"{url}/api/chat", json={"model": "tiny"}).text.count(CANARY) == 3
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=LIMIT_S)
    assert rows_of(file) == []
    assert "/chat/completions" in out


@pytest.mark.slow
def test_a_killed_recording_keeps_what_had_ended(tmp_path):
    with ScriptedServer(answering) as server, recording(tmp_path, server.url) as (process, url, file):
        for number in range(5):
            ask(url, f"question {number}")
        with httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "stay", "stream": True}) as running:
            chunks = running.iter_raw()
            next(chunks)
            wait_until(lambda: len(rows_of(file)) == 5)
            process.kill()
            process.wait()
        assert [row["status"] for row in rows_of(file)] == [200] * 5


@pytest.mark.slow
def test_a_salt_makes_the_hashes_of_two_recordings_equal(tmp_path):
    ids = []
    with ScriptedServer(answering) as server:
        for name, words in (("a", ("--salt", "one")), ("b", ("--salt", "one")), ("c", ())):
            folder = tmp_path / name
            folder.mkdir()
            with recording(folder, server.url, *words, "--block-tokens", "16") as (process, url, file):
                ask(url, "the same " * 50)
                process.send_signal(signal.SIGTERM)
                assert process.wait(LIMIT_S) == 0
                ids.append(rows_of(file)[0]["hash_ids"])
    assert ids[0] == ids[1]
    assert len(ids[0]) == len(ids[2]) > 5
    assert not set(ids[0]) & set(ids[2])


@pytest.mark.slow
def test_a_client_that_leaves_is_a_cancelled_request(tmp_path):
    with ScriptedServer(answering) as server, recording(tmp_path, server.url) as (process, url, file):
        with httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "stay", "stream": True}) as running:
            next(running.iter_raw())
        wait_until(lambda: len(rows_of(file)) == 1)
        assert rows_of(file)[0]["cancelled"] is True
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0


def test_a_client_that_leaves_before_an_answer_names_no_model(tmp_path):
    left = threading.Event()

    def silent(connection, _request):
        left.wait(LIMIT_S)
        return False

    with ScriptedServer(silent) as server, recording(tmp_path, server.url) as (process, url, file):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/completions", json={"prompt": "stay", "model": "tiny"}, timeout=1.0)
        wait_until(lambda: len(rows_of(file)) == 1)
        left.set()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (0, "")
    assert "load.requests=1\n" in out


def test_a_file_that_exists_is_not_touched(tmp_path, run_main):
    (tmp_path / "trace.jsonl").write_text("mine\n")
    run_main("record", "--to", "trace.jsonl", "--port", str(own_port()), "--", "http://127.0.0.1:9", code=2)
    assert (tmp_path / "trace.jsonl").read_text() == "mine\n"


def test_a_name_that_no_workload_reads_is_refused_before_a_file_is_made(tmp_path, run_main):
    run_main("record", "--to", "trace.txt", "--port", str(own_port()), "--", "http://127.0.0.1:9", code=2)
    assert not (tmp_path / "trace.txt").exists()


@pytest.mark.parametrize("url", ["host:8000", "ftp://host", "http://", "http://user:key@host", "http://host:port"])
def test_what_is_no_address_is_refused_before_a_file_is_made(tmp_path, run_main, url):
    run_main("record", "--to", "trace.jsonl", "--port", str(own_port()), "--", url, code=2)
    assert not (tmp_path / "trace.jsonl").exists()


def test_a_port_that_is_taken_is_an_error_before_a_file_is_made(tmp_path, run_main):
    with refusing_port() as port:
        done = run_main("record", "--to", "trace.jsonl", "--port", str(port), "--", "http://127.0.0.1:9")
    assert done.returncode not in (0, 2)
    assert not (tmp_path / "trace.jsonl").exists()
