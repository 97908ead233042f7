"""Emulated engines as whole processes: what a client sees of each, and what it cannot tell from a real one."""

import json

import httpx
import pytest

from servebench.emulator.connection import body_of
from servebench.registry.registry import registry

HTTP = httpx.Client(trust_env=False, timeout=300.0)
"""One for all: a client of its own for each request takes longer than the request."""


def samples(text):
    """Values of a metrics page by name, labels left out."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name.partition("{")[0]: float(value) for name, _, value in lines}


def events(running, path, body):
    """The events of a streamed answer: parsed JSON, and `[DONE]` as it is."""
    found = []
    with HTTP.stream("POST", running.base_url + path, json={"model": running.model, "stream": True, **body}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["x-servebench-emulated"] == "true"
        for line in answer.iter_lines():
            if line.startswith("data:"):
                data = line[5:].strip()
                found.append(data if data == "[DONE]" else json.loads(data))
    return found


CHAT = {"messages": [{"role": "user", "content": "Say something, please."}], "max_tokens": 6, "temperature": 0}
USAGE = {"stream_options": {"include_usage": True}}

DIALECTS = {
    # engine: (delta of the first event, finish reason alone, cached tokens told, [DONE])
    "vllm": ({"role": "assistant", "content": ""}, False, True, True),
    "sglang": ({"role": "assistant", "content": ""}, True, True, True),
    "trtllm": ({"role": "assistant"}, False, True, True),
    "llamacpp": ({"role": "assistant", "content": None}, True, True, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DIALECTS)
def test_a_chat_streams_as_the_engine_does(name, launch):
    """First chunk, one token an event, where the finish reason is, usage, end."""
    first, alone, cached, done = DIALECTS[name]
    running = launch(name)
    exact = dict(registry().engine(name).dialect.exact_output)
    told = events(running, "/chat/completions", {**CHAT, **USAGE, **exact})
    assert told[0]["choices"][0]["delta"] == first
    assert (told[-1] == "[DONE]") is done
    usage = told[-2]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert ("prompt_tokens_details" in usage["usage"]) is cached
    content = [e for e in told[1:-2] if e["choices"] and e["choices"][0]["delta"].get("content")]
    assert [len(e["choices"][0]["delta"]["content"]) for e in content] == [4] * 6
    assert (content[-1]["choices"][0]["finish_reason"] is None) is alone
    assert [e["choices"][0]["finish_reason"] for e in told[1:-2] if e["choices"]][-1] == "length"


def test_one_engine_serves_all_that_clients_ask(launch):
    """Models, health, version, metrics, tokens, errors, answers without a stream: one start for all."""
    running = launch("vllm", max_model_len=512)
    root, base = running.root_url, running.base_url
    assert HTTP.get(f"{root}/health").status_code == 200
    assert HTTP.get(f"{base}/models").json()["data"][0]["id"] == running.model
    assert running.version.startswith("emulated ")
    whole = HTTP.post(f"{base}/chat/completions", json={"model": running.model, **CHAT, "ignore_eos": True}).json()
    assert len(whole["choices"][0]["message"]["content"]) == 24
    # the same question, the same answer; another one, another
    same = [
        events(running, "/completions", {"prompt": "abc" * 9, "max_tokens": 9, "ignore_eos": True}) for _ in range(2)
    ]
    texts = ["".join(e["choices"][0]["text"] for e in told if e != "[DONE]" and e["choices"]) for told in same]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 36
    twice = "shared words " * 20
    for expected in (0, 64):
        told = events(running, "/completions", {"prompt": twice, "max_tokens": 2, **USAGE})
        assert told[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == expected
        assert told[-2]["usage"]["prompt_tokens"] == 65
    assert HTTP.post(f"{root}/reset_prefix_cache").json()["success"] is True
    told = events(running, "/completions", {"prompt": twice, "max_tokens": 2, **USAGE})
    assert told[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}, "k": {"enum": ["x", "y"]}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    told = events(running, "/chat/completions", {**CHAT, "max_tokens": 99, "response_format": form})
    said = json.loads("".join(e["choices"][0]["delta"].get("content") or "" for e in told[:-1] if e["choices"]))
    assert said["n"] >= 3
    assert said["k"] in ("x", "y")
    for body, status in (
        ({"model": "another", **CHAT}, 404),
        ({"model": running.model, **CHAT, "max_tokens": 600}, 400),
        ({"model": running.model}, 400),
    ):
        refused = HTTP.post(f"{base}/chat/completions", json=body)
        assert refused.status_code == status
        assert refused.json()["error"]["message"]
    metrics = samples(HTTP.get(f"{root}/metrics").text)
    assert metrics["vllm:generation_tokens_total"] > 30
    assert metrics["vllm:prefix_cache_hits_total"] == 64
    assert metrics["vllm:num_requests_running"] == 0
    assert HTTP.get(f"{root}/emulator").json()["lateness_ms"]["p50"] >= 0


def test_an_unknown_field_is_refused_where_the_engine_does(launch):
    """TensorRT-LLM: 400; vLLM ignores it."""
    body = {**CHAT, "guided_json": "{}"}
    strict = launch("trtllm")
    answer = HTTP.post(f"{strict.base_url}/chat/completions", json={"model": strict.model, **body})
    assert answer.status_code == 400
    assert "guided_json" in answer.json()["message"]


@pytest.mark.slow
def test_a_full_queue_answers_as_sglang_does(launch):
    from concurrent.futures import ThreadPoolExecutor

    running = launch("sglang", max_num_seqs=1, extra_args={"max-queued-requests": 1})
    # long enough for others to come meanwhile, also on a busy machine
    body = {"prompt": "word " * 60, "max_tokens": 300, "ignore_eos": True}
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: events(running, "/completions", body), range(6)))
    refused = [told for told in answers if told != ["[DONE]"] and "error" in told[0]]
    assert 1 <= len(refused) <= 5
    assert refused[0][0]["error"]["code"] == 503
    assert len(refused[0]) == 2


def test_phases_come_from_the_engines_own_words(launch):
    """Those of vLLM's adapter, in their order, by the lines that its log has."""
    running = launch("vllm")
    names = [phase.name for phase in running.phases]
    assert names == [
        "spawned",
        "process_up",
        "weights_loaded",
        "compiled",
        "graphs_captured",
        "engine_ready",
        *("listening", "healthy", "first_token"),
    ]
    report = running.stop()
    assert report.stopped
    assert (report.forced, report.leftover) == (False, ())


BENCH = {
    # what `vllm bench serve --backend openai` sends to whatever it measures
    "repetition_penalty": 1.0,
    "logprobs": None,
    "max_tokens": 8,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vllm", "trtllm"])
def test_completions_as_vllms_own_benchmark_asks_for_them(name, launch):
    """Its fields, prompts as texts and as token ids, a body in chunks; eight tokens and the usage come of each."""
    running = launch(name)
    for prompt in ("one two three", ["one two three"], [151_000, 7, 42], [[151_000, 7, 42]]):
        *told, usage, done = events(running, "/completions", {**BENCH, "prompt": prompt})
        assert done == "[DONE]"
        assert [bool(one["choices"][0]["text"]) for one in told] == [True] * 8
        assert usage["usage"]["completion_tokens"] == 8
        assert usage["usage"]["prompt_tokens"] == (3 if isinstance(prompt[0], int | list) else 4)
    whole = json.dumps({"model": running.model, "prompt": "one", "max_tokens": 3, "ignore_eos": True}).encode()
    chunked = HTTP.post(f"{running.base_url}/completions", content=iter([whole[:7], whole[7:20], whole[20:]]))
    assert "transfer-encoding" in chunked.request.headers
    assert chunked.json()["usage"]["completion_tokens"] == 3
    two = HTTP.post(f"{running.base_url}/completions", json={"model": running.model, "prompt": ["one", "two"]})
    assert (two.status_code, "2 prompts" in two.text) == (400, True)


def test_what_was_tokenized_comes_back(launch):
    """`vllm bench serve` cuts its prompts with the server's tokenizer: the first two tokens are the first eight letters."""
    root = launch("vllm").base_url.removesuffix("/v1")
    tokens = HTTP.post(f"{root}/tokenize", json={"prompt": "abcdefghij"}).json()["tokens"]
    assert HTTP.post(f"{root}/detokenize", json={"tokens": tokens[:2]}).json()["prompt"] == "abcdefgh"
    assert HTTP.post(f"{root}/detokenize", json={"tokens": "x"}).status_code == 400


@pytest.mark.parametrize(
    ("data", "headers", "found"),
    [
        (b"abcdef", {"content-length": "4"}, (b"abcd", 4)),
        (b"abc", {"content-length": "4"}, None),
        (b"rest", {}, (b"", 0)),
        (b"3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\nGET", {"transfer-encoding": "chunked"}, (b"abcde", 24)),
        (b"1\r\na\r\n0\r\nt: x\r\n\r\n", {"transfer-encoding": "chunked"}, (b"a", 17)),
        (b"3\r\nab", {"transfer-encoding": "chunked"}, None),
        (b"1\r\na\r\n0\r\n", {"transfer-encoding": "chunked"}, None),
        (b"1\r\na\r\n", {"transfer-encoding": "chunked"}, None),
    ],
)
def test_a_body_ends_where_its_headers_say(data, headers, found):
    """With a length, and in chunks with extensions and trailers; what is not whole is waited for."""
    assert body_of(data, 0, headers) == found


def test_a_length_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="invalid literal"):
        body_of(b"zz\r\n", 0, {"transfer-encoding": "chunked"})


def test_the_typed_apis_stream_their_events(launch):
    """The same tokens as in a chat, in the events of the Responses and the Messages API, whole answers too."""
    running = launch("vllm")
    asked = {"temperature": 0}
    turns = CHAT["messages"]
    exact = {"ignore_eos": True}
    chat = events(running, "/chat/completions", {**CHAT, **exact})
    text = "".join(e["choices"][0]["delta"].get("content") or "" for e in chat if e != "[DONE]")
    received = events(running, "/responses", {**asked, **exact, "input": turns, "max_output_tokens": 6})
    assert [one["sequence_number"] for one in received] == list(range(len(received)))
    assert [one["type"].removeprefix("response.") for one in received] == [
        *("created", "output_item.added"),
        *["output_text.delta"] * 6,
        *("output_text.done", "output_item.done", "incomplete"),
    ]
    assert "".join(one["delta"] for one in received[2:8]) == text
    usage = received[-1]["response"]["usage"]
    assert (usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (6, 0)
    received = events(running, "/messages", {**asked, "system": "Be brief.", "messages": turns, "max_tokens": 6})
    assert [one["type"] for one in received] == [
        *("message_start", "content_block_start"),
        *["content_block_delta"] * 6,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    said = received[-2]["usage"]
    assert received[0]["message"]["usage"]["input_tokens"] == said["input_tokens"] + said["cache_read_input_tokens"]
    assert (said["output_tokens"], received[-2]["delta"]["stop_reason"]) == (6, "max_tokens")
    for path, body in (("/responses", {"input": "Hi", "max_output_tokens": 6}), ("/messages", {**CHAT})):
        whole = HTTP.post(running.base_url + path, json={"model": running.model, **body}).json()
        assert (whole.get("output") or whole["content"])[0]
        assert whole["usage"]["output_tokens"] == 6
    for path, body, where in (
        ("/embeddings", {"input": ["One", "Two"]}, "data"),
        ("/rerank", {"query": "Which?", "documents": ["One", "Two"]}, "results"),
    ):
        received = HTTP.post(running.base_url + path, json={"model": running.model, **body}).json()
        assert [one["index"] for one in received[where]] == [0, 1]
    for path, body in (
        ("/responses", {"input": []}),
        ("/messages", {"messages": turns}),
        ("/embeddings", {"input": []}),
    ):
        assert HTTP.post(running.base_url + path, json={"model": running.model, **body}).status_code == 400
