import os
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from servebench.config.information import print_hydra_information
from servebench.util.errors import ConfigError


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)


def test_cfg_job_prints_the_composed_job(registry, capsys):
    argv, environment = list(sys.argv), dict(os.environ)
    assert print_hydra_information(["--cfg", "job", "load=steady", "engine.threads=3", "model.name=foo"], registry) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["load"]["name"], shown["engine"]["threads"]) == ("steady", 3)
    assert (shown["model"]["name"], shown["model"]["gguf"]) == ("foo", None)
    assert "hydra" not in shown
    assert list(Path().iterdir()) == []
    assert (sys.argv, dict(os.environ)) == (argv, environment)


@pytest.mark.slow
def test_cfg_resolve(registry, capsys):
    words = ["engine.dtype=${load.name}", "--package", "engine", "--cfg=job"]
    print_hydra_information(words, registry)
    assert yaml.safe_load(capsys.readouterr().out)["dtype"] == "${load.name}"
    print_hydra_information([*words, "--resolve"], registry)
    assert yaml.safe_load(capsys.readouterr().out)["dtype"] == "quick"


def test_a_config_that_cannot_run_can_be_shown(registry, capsys):
    assert print_hydra_information(["--cfg", "job", "engine=vllm", "engine.port=x"], registry) == 0
    assert yaml.safe_load(capsys.readouterr().out)["engine"]["port"] == "x"


def test_a_users_folder_is_searched(registry, tmp_path, capsys):
    (tmp_path / "mine" / "slo").mkdir(parents=True)
    (tmp_path / "mine" / "slo" / "strict.yaml").write_text("ttft_ms: 1.0\n")
    print_hydra_information(["--cfg", "job", "-p", "slo", "-cd", str(tmp_path / "mine"), "slo=strict"], registry)
    assert yaml.safe_load(capsys.readouterr().out) == {"ttft_ms": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--cfg", "nope"], "argument --cfg/-c: invalid choice: 'nope'"),
        (["--resolve"], "the --resolve flag can only be used"),
        (["--cfg", "job", "-m"], "--cfg shows one config; leave out -m"),
        (["--cfg", "job", "engine.port=1,2"], "engine.port=1,2: only one config can be shown; give one value"),
        (["--cfg", "job", "engine=vlm"], "engine=vlm: no such engine"),
        (["--cfg", "job", "load.concurency=1"], "load.concurency: unknown key; did you mean 'load.concurrency'?"),
        (["--cfg", "job", "-p", "nope"], "package 'nope' not found in config"),
        (["--cfg", "job", "--resolve", "engine.dtype=${nope}"], "interpolation key 'nope' not found"),
        (["--cfg", "job", "--zzz"], "--zzz: unknown option"),
    ],
)
def test_faults_are_lines(words, line, registry, capsys):
    with pytest.raises(ConfigError) as caught:
        print_hydra_information(words, registry)
    (fault,) = caught.value.faults
    assert fault.startswith(line)
    assert "\n" not in fault
    assert capsys.readouterr().err == ""
