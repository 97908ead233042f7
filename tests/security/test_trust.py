"""What a stranger hands over acts only after the user has seen it and said yes; what one made oneself asks nothing."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SIMULATED = ("engine=vllm", "launch=simulated", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "workload=unique",
             "workload.output_tokens=16", "load.concurrency=[1]", "load.requests=5", "load.self_check=never")  # fmt: skip
RUN = "00_vllm_unique"
OLD = Path(__file__).parents[1] / "store" / "old"
SECRET = "MY_CLOUD_SECRET"  # pragma: allowlist secret
VALUE = "kq7-not-for-strangers"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A user without a key yet, and with a secret."""
    monkeypatch.setenv("SERVEBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(SECRET, VALUE)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", VALUE)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115,PTH123 - for the test's whole time
    yield tmp_path / "cache"
    sys.stdin.close()


@pytest.fixture
def study(run_main, tmp_path):
    """The folder of a finished study of one's own."""
    run_main(*SIMULATED, "tracking=none", "study.name=s", code=0)
    return tmp_path / "outputs" / "s"


@pytest.fixture
def listener(serve):
    """A server of a stranger."""
    return serve(lambda *_: (404, {}))


def sent_to(server):
    return str([(one.path, one.headers, one.body) for one in server.requests])


def changed(path, change):
    """Write the JSON file again with a change."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


def unsigned(path):
    return changed(path, lambda document: document.pop("seal", None))


def refused(done):
    """It was refused in one line that says what to do."""
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "--trust" in done.stderr


def hostile_process(config, folder):
    script = folder / "evil.sh"
    script.write_text(f"touch {folder / 'ran'}\n")
    config["launch"] = {"name": "process"}
    config["engine"] |= {"executable": "/bin/bash", "env": {"BASH_ENV": str(script)}, "ready_timeout_s": 5.0}


@pytest.mark.slow
def test_own_manifests_ask_nothing_wherever_they_are(run_main, study, tmp_path):
    for place in (study, tmp_path / "outputs" / "renamed", tmp_path / "elsewhere"):
        if place != study:
            study = shutil.move(study, place)
        done = run_main("run", "--lock", str(Path(study) / RUN / "manifest.json"), code=0)
        assert "trust" not in done.stderr


TAMPERED = {
    "a changed setting": lambda manifest, _: manifest["config"]["load"].update(requests=6),
    "an added key": lambda manifest, _: manifest.update(more=1),
    "no signature": lambda manifest, _: manifest.pop("seal"),
    "an empty signature": lambda manifest, _: manifest.update(seal={}),
    "a signature of another form": lambda manifest, _: manifest.update(seal=["mac"]),
    "the signature of the study": lambda manifest, study: manifest.update(
        seal=json.loads((study / "study.json").read_text())["seal"]
    ),
    "another folder in the signature": lambda manifest, _: manifest["seal"].update(folder="0" * 64),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", TAMPERED.values(), ids=TAMPERED)
def test_a_manifest_that_is_not_as_it_was_signed_is_refused(run_main, study, tmp_path, change):
    manifest = changed(study / RUN / "manifest.json", lambda document: change(document, study))
    before = sorted(tmp_path.rglob("*"))
    refused(run_main("run", "--lock", str(manifest)))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_manifest_signed_by_another_user_is_refused_and_one_that_is_trusted_runs(run_main, study, cache):
    shutil.rmtree(cache)
    refused(run_main("run", "--lock", str(study / RUN / "manifest.json")))
    run_main("run", "--lock", str(study / RUN / "manifest.json"), "--trust", code=0)
    state = json.loads(max((study.parent).glob("*/study.json"), key=os.path.getmtime).read_text())
    assert "--trust" not in state["words"], "the word holds for one command"


@pytest.mark.slow
def test_a_program_of_a_stranger_is_shown_and_not_run(run_main, study, tmp_path):
    manifest = unsigned(study / RUN / "manifest.json")
    changed(manifest, lambda document: hostile_process(document["config"], tmp_path))
    refused(run_main("run", "--lock", str(manifest)))
    assert not (tmp_path / "ran").exists()
    shown = run_main("run", "--lock", str(manifest), "--trust")
    assert "/bin/bash" in shown.stderr
    assert "BASH_ENV" in shown.stderr
    assert (tmp_path / "ran").exists(), "it would have been run"


@pytest.mark.slow
@pytest.mark.parametrize("by", [{"api_key_env": SECRET}, {"headers_env": {"x-key": SECRET}}])
def test_a_manifest_hands_no_variable_to_a_server_of_its_own(run_main, study, listener, by):
    def attach(document):
        document["config"]["engine"] |= {"name": "openai"}
        document["config"]["launch"] = {"name": "attach", "base_url": listener.base_url, **by}

    manifest = changed(study / RUN / "manifest.json", attach)
    refused(run_main("run", "--lock", str(manifest)))
    assert listener.connections == 0
    shown = run_main("run", "--lock", str(manifest), "--trust").stderr
    assert listener.url in shown
    assert f"takes your variables: {SECRET}\n" in shown
    assert VALUE in sent_to(listener), "it would have been sent"


def test_mounts_images_and_folders_are_shown_without_control_characters(run_main, study, tmp_path):
    elsewhere = str(tmp_path / "else")

    def docker(document):
        args = ["--privileged", "\x1b]0;harmless\x07\n  runs: true"]
        document["config"]["launch"] = {"name": "docker", "image": "evil/image", "volumes": ["/:/host"], "args": args}
        document["config"]["study"]["dir"] = elsewhere
        document["config"]["tracking"]["uri"] = "http://elsewhere.example"

    manifest = changed(study / RUN / "manifest.json", docker)
    shown = run_main("run", "--lock", str(manifest), "--trust").stderr
    for part in ("evil/image", "/:/host", "--privileged", elsewhere, "http://elsewhere.example"):
        assert part in shown
    assert "\x1b" not in shown
    assert "\n  runs: true" not in shown


def on_a_terminal(tmp_path, answer, *words):
    """Run the command on a terminal, type the answer, and return the exit code and what was shown."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "servebench", *words]
    with subprocess.Popen(argv, cwd=tmp_path, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        while b"[y/N]" not in shown and (part := _read(ours)):
            shown += part
        os.write(ours, answer)
        while part := _read(ours):
            shown += part
        os.close(ours)
        return process.wait(), shown.decode()


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code"), [(b"\n", 2), (b"\x04", 2), (b"no\n", 2), (b"y\n", 0)])
def test_on_a_terminal_it_asks_and_no_is_the_default(study, tmp_path, answer, code):
    before = len(list(study.parent.iterdir()))
    manifest = unsigned(study / RUN / "manifest.json")
    found, shown = on_a_terminal(tmp_path, answer, "run", "--lock", str(manifest))
    assert found == code, shown
    assert "[y/N]" in shown
    assert len(list(study.parent.iterdir())) == before + (code == 0)


@pytest.mark.slow
def test_what_is_too_long_to_judge_is_not_asked(study, tmp_path):
    def long(document):
        document["config"]["engine"]["extra_args"] = {f"flag-{number}": "x" * 90 for number in range(300)}

    manifest = changed(study / RUN / "manifest.json", long)
    code, shown = on_a_terminal(tmp_path, b"y\n", "run", "--lock", str(manifest))
    assert code == 2
    assert "too long" in shown
    assert "[y/N]" not in shown


@pytest.mark.slow
def test_a_relative_program_means_the_folder_of_the_command(run_main, tmp_path, monkeypatch):
    """The signature is one's own, but ./server lies where a stranger put it, beside a copy of the manifest."""
    (tmp_path / "server").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "server").chmod(0o755)
    words = ["engine=vllm", "engine.executable=./server", "model.name=m", "gpu=none", "load.self_check=never", "study.name=s",
             "tracking=none"]  # fmt: skip
    assert run_main(*words).returncode == 4
    manifest = tmp_path / "outputs" / "s" / RUN.replace("unique", "short") / "manifest.json"
    assert run_main("run", "--lock", str(manifest)).returncode == 4, "in the same folder it asks nothing"
    other = tmp_path / "unpacked"
    other.mkdir()
    evil = other / "server"
    evil.write_text(f"#!/bin/sh\ntouch {other / 'ran'}\n")
    evil.chmod(0o755)
    from servebench.cli.main import main

    monkeypatch.chdir(other)
    monkeypatch.setattr(sys, "argv", ["servebench", "run", "--lock", str(manifest)])
    assert main() == 2
    assert not (other / "ran").exists()
