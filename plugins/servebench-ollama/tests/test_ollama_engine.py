"""Ollama's adapter: the conformance suite, its variables, and how a model is made known to it."""

import json
import shlex
import sys

import pytest

from servebench.plugin import EngineError, ModelSettings
from servebench.testing import EngineConformance
from servebench_ollama.engine import OllamaEngine
from servebench_ollama.library import source_of


class TestOllama(EngineConformance):
    """The lines are those of its sources (0.33)."""

    engine = OllamaEngine
    program = "ollama"
    model = ModelSettings(name="llama3.2:1b")
    own_defaults = {"prefix_caching": True}
    sample_log = (
        'time=2026-11-01T10:00:00.000Z level=INFO source=routes.go:1 msg="Listening on 127.0.0.1:11434 (version 0.33.0)"',
        'time=2026-11-01T10:00:01.000Z level=INFO source=llama_server.go:1 msg="starting llama-server"',
        'time=2026-11-01T10:00:03.000Z level=INFO source=llama_server.go:1 msg="llama-server started in 2.10 seconds"',
    )
    failures = {
        "out_of_memory": "Error: model requires more system memory (8.0 GiB) than is available (2.0 GiB)",
        "model_missing": "Error: pull model manifest: file does not exist",
        "wrong_cuda": "CUDA error: no kernel image is available for execution on the device",
        "unknown_flag": 'Error: unknown command "serve" for "ollama"',
        "port_in_use": "Error: listen tcp 127.0.0.1:11434: bind: address already in use",
    }


SUITE = TestOllama()


def test_its_settings_are_variables(tmp_path):
    """`engine.env` has the last word; a null leaves the choice to it."""
    argv, env = SUITE.composed(
        SUITE.context(tmp_path, max_num_seqs=8, max_model_len=2048, env={"OLLAMA_KEEP_ALIVE": "5m"}, host="::1")
    )
    assert argv == ("ollama", "serve")
    assert env == {
        "OLLAMA_HOST": "[::1]:8123", "OLLAMA_KEEP_ALIVE": "5m", "OLLAMA_LOAD_TIMEOUT": "300s",
        "OLLAMA_CONTEXT_LENGTH": "2048", "OLLAMA_NUM_PARALLEL": "8",
    }  # fmt: skip
    assert "OLLAMA_NUM_PARALLEL" not in SUITE.composed(SUITE.context(tmp_path))[1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prefix_caching": False}, "engine.prefix_caching=false: "),
        ({"extra_args": {"x": 1}}, "engine.extra_args.x=1: 'ollama serve' takes no flags; use engine.env.OLLAMA_..."),
    ],
)
def test_what_it_cannot_do_is_refused(settings, words, tmp_path):
    assert words in OllamaEngine().check(SUITE.context(tmp_path, **settings))[0]


@pytest.mark.parametrize(
    ("name", "served"),
    [("llama3.2:1b", "llama3.2:1b"), ("llama3.2", "llama3.2:latest"), ("host:5000/a/b", "host:5000/a/b:latest")],
)
def test_a_name_has_a_tag(name, served):
    assert OllamaEngine().served_model(ModelSettings(name=name)) == served


def test_a_file_has_a_name_of_its_own():
    one, other = (
        OllamaEngine().served_model(ModelSettings(name="Org/M", path=path)) for path in ("/a.gguf", "/b.gguf")
    )
    assert one.startswith("servebench-org-m:")
    assert one != other


OLLAMA = """
import json, os, sys
words, host = sys.argv[1:], os.environ["OLLAMA_HOST"]
known = {known!r}
with open({calls!r}, "a") as calls:
    calls.write(json.dumps([words, host, open(words[3]).read() if words[0] == "create" else None]) + chr(10))
if words[0] == "serve":
    from http.server import HTTPServer, BaseHTTPRequestHandler
    name, _, port = host.rpartition(":")
    HTTPServer((name, int(port)), BaseHTTPRequestHandler).serve_forever()
if words[0] == "create" and "broken" in open(words[3]).read():
    sys.exit("Error: invalid file magic")
if words[0] == "show" and words[1] not in known:
    sys.exit("Error: model not found")
if words[0] == "pull" and "none" in words[1]:
    sys.exit("Error: pull model manifest: file does not exist")
"""
"""The part of Ollama's command that manages models."""


@pytest.fixture
def ollama(tmp_path):
    """Return a function that prepares a model with an executable, and returns its calls: arguments, host and Modelfile."""
    calls = tmp_path / "calls"
    script = tmp_path / "ollama.py"
    script.write_text(OLLAMA.replace("{known!r}", "['known:1']").replace("{calls!r}", repr(str(calls))))
    path = tmp_path / "ollama"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P {script} "$@"\n')
    path.chmod(0o755)

    def prepare(model):
        said = []
        OllamaEngine().prepare(SUITE.context(tmp_path / "cache", model=model, executable=str(path)), said.append)
        return [json.loads(line) for line in calls.read_text().splitlines()], said

    return prepare


def test_a_file_is_added_to_the_library(ollama, tmp_path):
    """By a temporary server on another port; a folder stands for the GGUF file next to it."""
    (tmp_path / "smol").mkdir()
    gguf = tmp_path / "smol-q4.gguf"
    gguf.touch()
    model = ModelSettings(name="smol", path=str(tmp_path / "smol"))
    calls, said = ollama(model)
    assert [call[0][0] for call in calls] == ["serve", "create"]
    assert calls[0][1] == calls[1][1] != "127.0.0.1:8123"
    assert calls[1][0][1] == OllamaEngine().served_model(model)
    assert calls[1][2] == f"FROM {gguf}\n"
    (line,) = said
    assert "smol-q4.gguf" in line


@pytest.mark.parametrize(("name", "verbs"), [("known:1", ["serve", "show"]), ("new:1", ["serve", "show", "pull"])])
def test_a_name_is_pulled_once(name, verbs, ollama):
    calls, _ = ollama(ModelSettings(name=name))
    assert [call[0][0] for call in calls] == verbs


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (ModelSettings(name="none"), "Error: pull model manifest: file does not exist"),
        (ModelSettings(name="m", path="/x/broken.gguf"), "Error: invalid file magic; model.path must be"),
    ],
)
def test_a_rejected_model(model, words, ollama):
    with pytest.raises(EngineError, match="ollama") as error:
        ollama(model)
    assert words in str(error.value)
    assert error.value.kind == "model_missing"


def test_a_program_that_does_not_serve(tmp_path):
    path = tmp_path / "ollama"
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(0o755)
    context = SUITE.context(tmp_path / "cache", executable=str(path))
    with pytest.raises(EngineError, match="exit code 3"):
        OllamaEngine().prepare(context, lambda _: None)


def test_the_source_of_a_folder(tmp_path):
    """With several GGUF files the folder itself is used, whose safetensors Ollama converts."""
    folder = tmp_path / "m"
    folder.mkdir()
    assert source_of(folder) == folder
    (folder / "a.gguf").touch()
    assert source_of(folder) == folder / "a.gguf"
    (folder / "b.gguf").touch()
    assert source_of(folder) == folder
