"""`servebench plugins new`: what it writes installs, is found, and passes its own tests."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from servebench.skeleton import KINDS, skeleton, write_plugin
from servebench.util.errors import ConfigError
from support.commands import run_program


def run(*words, cwd, site=None):
    env = {"PYTHONPATH": os.pathsep.join([str(site), *(place for place in sys.path if place)])} if site else None
    return run_program(sys.executable, "-m", *words, cwd=cwd, env=env)


def write_and_install(folder, name, *options):
    """Return the command's output, the new plugin's folder, and the folder that it is installed in."""
    written = run("servebench", "plugins", "new", name, "--dir", "here", *options, cwd=folder)
    assert written.returncode == 0, written.stderr
    mine, site = folder / "here" / f"servebench-{name}", folder / "site"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation")
    installed = run("pip", "install", *quiet, "--target", str(site), str(mine), cwd=folder)
    assert installed.returncode == 0, installed.stderr
    return written.stdout, mine, site


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    return write_and_install(tmp_path_factory.mktemp("new"), "my-engine")[1:]


@pytest.mark.slow
def test_it_is_found_and_composes(plugin):
    folder, site = plugin
    listed = json.loads(run("servebench", "plugins", "--json", cwd=folder, site=site).stdout)
    (mine,) = [one for one in listed["plugins"] if one["name"] == "my-engine"]
    assert (mine["distribution"], mine["version"], mine["status"]) == ("servebench-my-engine", "0.1.0", "loaded")
    asked = ("engine=my-engine", "model.path=/m", "engine.threads=2", "--cfg", "command")
    printed = run("servebench", *asked, cwd=folder, site=site)
    assert printed.stdout == "my-engine-server --model /m --host 127.0.0.1 --port 8000 --threads 2\n"


@pytest.mark.slow
def test_it_passes_its_own_tests(plugin):
    """The conformance suite among them, with a stand-in for the program that is not there."""
    folder, site = plugin
    done = run("pytest", "-q", "-rs", "-p", "no:cacheprovider", cwd=folder, site=site)
    assert done.returncode == 0, done.stdout[-3000:]
    passed, skipped = re.search(r"(\d+) passed, (\d+) skipped", done.stdout).groups()
    assert int(passed) > 25
    assert skipped == "6", "no image, no emulation of its own, no program, no times of requests in three ways"
    assert "ran with a stand-in" in done.stdout


@pytest.mark.slow
def test_a_broken_one_does_not_pass(plugin, tmp_path):
    """A flag that is dropped in silence, a log line that no pattern finds, a field that the engine does not know: seen."""
    folder, site = plugin
    engine = site / "servebench_my_engine" / "engine.py"
    good = engine.read_text()
    bad = good.replace('"--max-num-seqs",\n', '"",\n').replace("*FLAGS.arguments(settings), ", "")
    assert bad != good
    engine.write_text(bad.replace(r'r"weights loaded"', 'r"weights are here"'))
    try:
        done = run("pytest", "-q", "-p", "no:cacheprovider", "-k", "ignored or patterns", cwd=folder, site=site)
    finally:
        engine.write_text(good)
    assert done.returncode == 1
    failed = set(re.findall(r"FAILED \S+::(\w+)", done.stdout))
    assert failed == {"test_no_setting_is_ignored", "test_log_patterns"}
    assert "engine.max_num_seqs=24" in done.stdout
    assert "weights_loaded" in done.stdout


@pytest.mark.parametrize(
    ("name", "kind", "directory", "reason"),
    [
        ("My_Engine", "engine", ".", "'My_Engine' is not a valid name for an engine"),
        ("a--b", "engine", ".", "'a--b' is not a valid name"),
        ("vllm", "engine", ".", "engine named 'vllm' already exists"),
        ("mmlu", "scorer", ".", "scorer named 'mmlu' already exists"),
        ("unique", "workload", ".", "workload named 'unique' already exists"),
        ("none", "engine", ".", "'none' is not a valid name"),
        ("base", "workload", ".", "'base' is not a valid name"),
        ("x", "engine", "/proc", "cannot write /proc/servebench-x"),
    ],
)
def test_plugin_that_cannot_be_written(name, kind, directory, reason):
    taken = {"engine": ["vllm"], "quality": ["mmlu"], "workload": ["unique"]}
    with pytest.raises(ConfigError) as error:
        write_plugin(name, kind=kind, directory=Path(directory), taken=taken)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "servebench-x").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        write_plugin("x", kind="engine", directory=tmp_path, taken={})
    assert list((tmp_path / "servebench-x").iterdir()) == []


@pytest.mark.parametrize(("kind", "group"), list(KINDS.items()))
def test_no_placeholder_is_left(kind, group):
    for path, text in skeleton("a-b2", kind).items():
        assert not re.search(r"@[A-Z_]+@|PACKAGE|MODULE|NAME", path)
        assert not re.search(r"@[A-Z_]+@", text), path
    assert f"src/servebench_a_b2/conf/{group}/a-b2.yaml" in skeleton("a-b2", kind)


@pytest.fixture(scope="module", params=["scorer", "workload"])
def other(request, tmp_path_factory):
    """Its kind, its folder, and the folder that it is installed in."""
    kind = request.param
    written, mine, site = write_and_install(tmp_path_factory.mktemp(kind), "my-own", "--kind", kind)
    assert written.startswith(f"here/servebench-my-own: a {kind} plugin")
    return kind, mine, site


@pytest.mark.slow
def test_a_scorer_and_a_workload_pass_their_own_tests(other):
    _, folder, site = other
    done = run("pytest", "-q", "-p", "no:cacheprovider", cwd=folder, site=site)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) > 10


BREAK = {
    "scorer": ("Grade(correct=correct,", "Grade(correct=correct or None,", "test_nonsense_is_graded"),
    "workload": (
        "salt(settings.seed, stream, index)",
        "index",
        "test_requests_depend_on_settings_seed_and_stream_only",
    ),
}


@pytest.mark.slow
def test_a_broken_scorer_or_workload_does_not_pass(other):
    """Wrong answers without a grade, prompts that a warm-up leaves in the cache: seen."""
    kind, folder, site = other
    good, bad, test = BREAK[kind]
    code = site / "servebench_my_own" / f"{kind}.py"
    text = code.read_text()
    assert good in text
    code.write_text(text.replace(good, bad))
    try:
        done = run("pytest", "-q", "-p", "no:cacheprovider", "-k", "not command", cwd=folder, site=site)
    finally:
        code.write_text(text)
    assert test in re.findall(r"FAILED \S+::(\w+)", done.stdout)
