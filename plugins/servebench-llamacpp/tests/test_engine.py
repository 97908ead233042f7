import importlib.util
import socket
import subprocess
import sys

import httpx
import pytest

from servebench.plugin import ConfigError, EngineError, ModelSettings, Request, ServerTimings
from servebench.testing import compose, engine_tokenizer
from servebench_llamacpp.engine import LlamaCppEngine

ENGINE = LlamaCppEngine()


def after(argv, flag):
    return argv[argv.index(flag) + 1]


def test_the_command_is_pure_and_says_everything(context_of, named):
    """Each setting is on the command line; a file that is not there yet is no hindrance."""
    context = context_of(
        model=named("/no/such.gguf"), threads=3, gpu_layers=4, seed=5, prefix_caching=False, extra_args={"n_batch": 64},
        env={"A": "1"},
    )  # fmt: skip
    command = ENGINE.command(context)
    assert command.argv[:4] == (sys.executable, "-P", "-m", "servebench_llamacpp.server")
    found = {
        flag: after(command.argv, flag) for flag in command.argv if flag.startswith("--") and "cache-prompt" not in flag
    }
    assert found.pop("--metrics") == "--cache-ram"
    assert found == {
        "--model": "/no/such.gguf", "--alias": context.model.name, "--host": "127.0.0.1", "--port": str(context.port),
        "--parallel": "2", "--ctx-size": "512", "--cache-ram": "0", "--threads": "3",
        "--n-gpu-layers": "4", "--seed": "5", "--set": "n_batch=64",
    }  # fmt: skip
    assert "--no-cache-prompt" in command.argv
    assert command.env == {"A": "1"}


def test_llama_server_gets_flags(context_of):
    """`engine.executable` runs `llama-server`, and `extra_args` are its flags."""
    context = context_of(
        executable="/opt/llama-server", extra_args={"flash-attn": "on", "-kvu": True}, max_num_seqs=None
    )
    argv = ENGINE.command(context).argv
    assert argv[0] == "/opt/llama-server"
    assert argv[-3:] == ("--flash-attn", "on", "-kvu")
    assert after(argv, "--parallel") == "4"


@pytest.mark.parametrize(("version", "threads"), [("5000 (ab12)", "1026"), ("9000 (ab12)", None), ("unknown", None)])
def test_only_an_old_server_gets_its_http_threads_at_the_start(context_of, tmp_path, version, threads):
    """A new one adds them when connections need them."""
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\necho 'version: {version}' >&2\n")
    program.chmod(0o755)
    argv = ENGINE.command(context_of(executable=str(program))).argv
    assert (after(argv, "--threads-http") if "--threads-http" in argv else None) == threads


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gpu_memory_fraction": 0.9}, "engine.gpu_layers="),
        ({"extra_args": {"n_bach": 1}}, "engine.extra_args.n_bach=1: the embedded llama.cpp has no parameter"),
        ({"extra_args": {"threads": 2}}, "engine.threads=2"),
        ({"extra_args": {"n_batch": "many"}}, "int (got 'many')"),
        ({"executable": "no-such-llama-server"}, "engine.executable=no-such-llama-server"),
    ],
)  # fmt: skip
def test_unsupported_settings_are_rejected(context_of, settings, words):
    (problem,) = ENGINE.check(context_of(**settings))
    assert words in problem


def test_a_usual_setting_has_no_fault(context_of):
    """One GPU is not tensor parallelism; parameters of nested structures are known."""
    assert ENGINE.check(context_of(tensor_parallel_size=1, extra_args={"cpuparams.n_threads": 2})) == []


def test_a_missing_package_is_reported(context_of, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert ENGINE.check(context_of()) == ["the embedded llama.cpp is not installed: pip install servebench-llamacpp"]


def test_a_missing_model(context_of, named, tmp_path):
    """Neither file nor package, a missing file, a file that is not a model."""
    context = context_of(model=ModelSettings(name="gpt-oss"))
    (problem,) = ENGINE.check(context)
    assert "model.name=gpt-oss" in problem
    with pytest.raises(ConfigError, match="GGUF"):
        ENGINE.command(context)
    other = tmp_path / "m.gguf"
    for words in ("does not exist", "is not a GGUF file"):
        context = context_of(model=named(other))
        (problem,) = ENGINE.check(context)
        assert words in problem
        with pytest.raises(EngineError, match=words) as error:
            ENGINE.prepare(context, lambda _: None)
        assert error.value.kind == "model_missing"
        other.write_text("something else")


def test_version(context_of):
    """That of the package, or the executable's output; null without output."""
    assert str(ENGINE.version(context_of())).startswith("xllamacpp 20")
    assert ENGINE.version(context_of(executable="no-such-llama-server")) is None


@pytest.mark.slow
def test_the_real_engine_from_start_to_stop(context_of, launch):
    """It starts by its phases, answers exactly as long as asked, counts tokens, tells its metrics, and leaves nothing."""
    context = context_of(extra_args={"n_batch": 64})
    running = launch(context)
    ended = [phase.name for phase in running.phases]
    assert sorted(ended) == sorted(
        ["spawned", "loading", "weights_loaded", "slots_ready", "serving", "listening", "healthy", "first_token"]
    )
    assert ended[0] == "spawned"
    assert ended[-1] == "first_token"
    assert ended.index("loading") < ended.index("weights_loaded") <= ended.index("slots_ready")
    request = Request(request_id="r", prompt="One two", output_tokens=5, exact_output=True)
    path, body = compose(ENGINE, request, running.model)
    body.update(stream=False, stream_options=None)
    answer = httpx.post(running.base_url + path, json=body, timeout=300).json()
    assert answer["usage"]["completion_tokens"] == 5
    slots = httpx.get(f"{running.root_url}/props", timeout=300).json()
    assert (slots["total_slots"], slots["default_generation_settings"]["n_ctx"]) == (2, 256)
    assert "llamacpp:tokens_predicted_total" in httpx.get(f"{running.root_url}/metrics", timeout=300).text
    tokenizer = engine_tokenizer(ENGINE, running, context.model)
    assert (tokenizer.name, tokenizer.exact) == ("engine", True)
    cut = tokenizer.truncate("The quick brown fox jumps over the lazy dog. " * 20, 33)
    assert tokenizer.count([cut]) == [33]
    assert running.version == ENGINE.version(context)
    report = running.stop()
    assert (report.stopped, report.forced, report.leftover) == (True, False, ())


def test_a_broken_model_ends_the_server_with_the_reason(context_of, launch, named, tmp_path):
    """A file that only begins like a model passes the check; the server ends at once and says why, without a traceback."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 1000)
    context = context_of(model=named(broken))
    assert ENGINE.check(context) == []
    with pytest.raises(EngineError) as error:
        launch(context)
    assert error.value.kind == "model_missing"
    assert f"cannot load the model {broken}" in str(error.value)
    assert "Traceback" not in (tmp_path / "engine.log").read_text()


def test_a_port_that_is_taken_while_it_starts(context_of, launch):
    """The server itself ends with the reason when somebody was faster."""
    context = context_of()
    command = ENGINE.command(context)
    with socket.create_server(("127.0.0.1", context.port)):
        done = subprocess.run(command.argv, capture_output=True, text=True, timeout=300, check=False)
        with pytest.raises(EngineError, match="in use") as error:
            launch(context)
    assert done.returncode == 1
    assert done.stderr.startswith(f"couldn't bind 127.0.0.1:{context.port}: ")
    assert error.value.kind == "port_in_use"


@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        # the last chunk of xllamacpp 2026 (`get_timings` in tools/server/server-context.cpp)
        (
            {"cache_n": 20, "prompt_n": 12, "prompt_ms": 551.537, "predicted_n": 16, "predicted_ms": 795.5},
            ServerTimings(prefill_ms=551.537, decode_ms=795.5),
        ),
        ({"predicted_n": 3}, ServerTimings()),
        (None, ServerTimings()),
    ],
)  # fmt: skip
def test_request_timings(timings, expected):
    """There is no queue: llama.cpp does not report it."""
    assert ENGINE.request_timings({"timings": timings}, {}) == expected
