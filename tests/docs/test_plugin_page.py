"""The plugin of docs/plugins.md, taken from the page and used."""

import json
import os
import re
import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from support.commands import run_program, run_servebench

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
BLOCK = re.compile(r"^```\w+\n# file: (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The page's files in a folder, with the metadata that an installation would have made of its pyproject.toml."""
    folder = tmp_path_factory.mktemp("toy")
    for name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    info = folder / "src" / "servebench_toy-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: servebench-toy\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[servebench]\ntoy = servebench_toy.plugin\n")
    return folder


@pytest.fixture(scope="module")
def servebench(installed):
    path = os.pathsep.join([str(installed / "src"), *(place for place in sys.path if place)])

    return partial(run_servebench, installed, env={"PYTHONPATH": path})


@pytest.mark.slow
def test_it_is_listed(servebench):
    """With its distribution, version and hooks."""
    listed = json.loads(servebench("plugins", "--json").stdout)
    (toy,) = [plugin for plugin in listed["plugins"] if plugin["name"] == "toy"]
    assert (toy["distribution"], toy["version"], toy["status"], toy["error"]) == (
        "servebench-toy",
        "0.1.0",
        "loaded",
        None,
    )
    assert toy["hooks"] == ["servebench_config_paths", "servebench_engines"]
    assert "toy" in listed["offers"]["engine"]


@pytest.mark.slow
def test_its_command_is_printed(servebench):
    """With a key of its own."""
    done = servebench("engine=toy", "model.name=toy-model", "engine.gap_ms=5", "--cfg", "command")
    assert done.stdout.endswith("-m servebench_toy.server 127.0.0.1 8000 5.0\n"), done.stderr


@pytest.mark.slow
def test_what_it_has_no_flag_for_is_refused(servebench):
    """With the reason that the adapter gives."""
    done = servebench("engine=toy", "model.name=toy-model", "engine.max_num_seqs=4", "tracking=none", code=3)
    assert "engine.max_num_seqs=4: " in done.stderr


@pytest.mark.slow
def test_a_run_of_it_has_its_phases_and_counts(servebench, installed):
    """Started, measured, stopped, as any engine."""
    servebench(
        "engine=toy",
        "model.name=toy-model",
        "load.concurrency=[2]",
        "load.requests=10",
        "workload.output_tokens=16",
        "tracking=none",
        "study.name=s",
        code=0,
    )
    (folder,) = (installed / "outputs" / "s").glob("*_toy_*")
    point = pd.read_csv(folder / "points.csv").iloc[0]
    assert (point.requests_ok, point.output_tokens_mean) == (10, 16)
    manifest = json.loads((folder / "manifest.json").read_text())
    names = [phase["name"] for phase in manifest["cold_start"]["phases"]]
    assert {"spawned", "weights_loaded", "serving", "listening", "healthy", "first_token"} == set(names)
    assert manifest["stop"]["leftover"] == []


@pytest.mark.slow
def test_its_tests_pass(installed):
    """The conformance suite, with the page's own server."""
    path = os.pathsep.join([str(installed / "src"), *(place for place in sys.path if place)])
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    done = run_program(sys.executable, *words, cwd=installed, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) > 20
