"""TGI's adapter: the conformance suite, its own dialect, and the stop that reaches its launcher only."""

import os
import sys
from dataclasses import replace

import psutil
import pytest

from servebench.plugin import ServerTimings
from servebench.testing import (
    CHAT,
    SCHEMA,
    TEXT,
    EngineConformance,
    compose,
    launch_process,
    plain_server,
    write_stand_in,
)
from servebench_tgi.engine import TgiEngine
from support.servers import own_port


class TestTgi(EngineConformance):
    """The lines are those of its sources (3.3.7)."""

    engine = TgiEngine
    program = "text-generation-launcher"
    rejection = 429
    sample_log = (
        "INFO download: text_generation_launcher: Starting check and download process for org/model",
        "INFO download: text_generation_launcher: Successfully downloaded weights for org/model",
        "INFO shard-manager: text_generation_launcher: Shard ready in 8.0s rank=0",
        "INFO text_generation_launcher: Starting Webserver",
        "INFO text_generation_router_v3: backends/v3/src/lib.rs:125: Warming up model",
        "INFO text_generation_router_v3: backends/v3/src/lib.rs:137: Setting max batch total tokens to 121696",
        "INFO text_generation_router::server: router/src/server.rs:2402: Connected",
    )
    failures = {
        "out_of_memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "model_missing": "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.",
        "unknown_flag": "error: unexpected argument '--no-such-flag' found",
        "wrong_cuda": "RuntimeError: Found no NVIDIA driver on your system.",
        "port_in_use": 'Error: Axum(Os { code: 98, kind: AddrInUse, message: "Address already in use" })',
    }


SUITE = TestTgi()


@pytest.mark.parametrize(
    ("settings", "words", "env"),
    [
        ({}, ["--num-shard", "1"], {}),
        ({"tensor_parallel_size": 2}, ["--num-shard", "2"], {}),
        ({"max_model_len": 4096}, ["--num-shard", "1", "--max-total-tokens", "4096"], {}),
        ({"prefix_caching": False}, ["--num-shard", "1"], {"PREFIX_CACHING": "false"}),
        ({"prefix_caching": True, "env": {"PREFIX_CACHING": "0"}}, ["--num-shard", "1"], {"PREFIX_CACHING": "0"}),
        (
            {"max_concurrent_requests": 512, "extra_args": {"cuda-graphs": "0"}},
            ["--num-shard", "1", "--max-concurrent-requests", "512", "--cuda-graphs", "0"],
            {},
        ),
    ],
)
def test_the_command(settings, words, env, tmp_path):
    """One GPU unless more are asked for: its own default is every GPU that it sees."""
    argv, found = SUITE.composed(SUITE.context(tmp_path, **settings))
    start = ("text-generation-launcher", "--model-id", "/models/model", "--hostname", "127.0.0.1", "--port", "8123")
    assert argv[: len(start)] == start
    assert list(argv[len(start) :]) == words
    assert dict(found) == env


def test_dtype_and_quantization_exclude_each_other(tmp_path):
    """As its own help says."""
    problems = TgiEngine().check(SUITE.context(tmp_path, dtype="bfloat16", quantization="awq"))
    assert problems[0].startswith("engine.dtype=bfloat16 and engine.quantization=awq: ")


def test_a_schema_has_its_own_shape():
    engine = TgiEngine()
    _, body = compose(engine, replace(CHAT, schema=SCHEMA), "tgi")
    assert body["response_format"]["type"] == "json_schema"
    assert body["response_format"]["value"]["schema"] == SCHEMA
    assert "json_schema" not in body["response_format"]
    assert "response_format" not in compose(engine, replace(TEXT, schema=SCHEMA), "tgi")[1]


LAUNCHER = """
import os, signal, subprocess, sys, time
shard_code = '''
import os, signal, sys, time
def term(*_):
    open(sys.argv[1], "a").write("TERM from " + ("launcher" if os.path.exists(sys.argv[2]) else "elsewhere") + chr(10))
    sys.exit(0)
signal.signal(signal.SIGTERM, term)
open(sys.argv[1], "w").close()
time.sleep(9999)
'''
seen, released, server = sys.argv[1:4]
shard = subprocess.Popen([sys.executable, "-c", shard_code, seen, released], process_group=0)
router = subprocess.Popen([server], process_group=0)
def stop(*_):
    open(released, "w").close()
    time.sleep(0.3)
    router.terminate(); shard.terminate()
    router.wait(); shard.wait()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
while True:
    time.sleep(1)
"""
"""Like TGI's launcher: shard and router in process groups of their own, stopped by the launcher."""


def test_only_the_launcher_gets_sigterm(tmp_path):
    """The launcher stops the shard once; nothing is killed and nothing is left."""
    port = own_port()
    router = write_stand_in(tmp_path / "router", plain_server("tgi", port=port))
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    launcher = tmp_path / "text-generation-launcher"
    seen, released = tmp_path / "seen", tmp_path / "released"
    launcher.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/launcher.py {seen} {released} {router}\n")
    launcher.chmod(0o755)
    context = SUITE.context(tmp_path, port=port, executable=str(launcher), stop_timeout_s=300.0)
    running = launch_process(TgiEngine(), context, log_path=tmp_path / "log")
    children = psutil.Process(running.pid).children(recursive=True)
    assert len({os.getpgid(child.pid) for child in children} - {os.getpgid(running.pid)}) == 2
    report = running.stop()
    assert (report.stopped, report.forced, report.leftover) == (True, False, ())
    assert seen.read_text() == "TERM from launcher\n"
    assert not any(child.is_running() for child in children)


def test_request_timings():
    """The headers of an answer that is not streamed (`router/src/server.rs`), in milliseconds; a streamed one has none."""
    headers = {"x-total-time": "1812", "x-queue-time": "40", "x-inference-time": "1771", "x-time-per-token": "55"}
    assert TgiEngine().request_timings({}, headers) == ServerTimings(queue_ms=40.0, e2e_ms=1812.0)
    assert TgiEngine().request_timings({"usage": {}}, {"x-queue-time": "soon"}) == ServerTimings()
