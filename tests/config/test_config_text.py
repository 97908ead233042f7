from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from servebench.config.composition import config_text
from servebench.util.errors import ConfigError


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)


def shown(registry, *words, **options):
    return yaml.safe_load(config_text(words, registry, **options))


def test_the_composed_job_is_shown(registry):
    found = shown(registry, "load=steady", "engine.threads=3", "model.name=foo")
    assert (found["load"]["name"], found["engine"]["threads"]) == ("steady", 3)
    assert (found["model"]["name"], found["model"]["gguf"]) == ("foo", None)
    assert "hydra" not in found
    assert list(Path().iterdir()) == []


def test_resolve(registry):
    words = ["engine.dtype=${load.name}"]
    assert shown(registry, *words, package="engine")["dtype"] == "${load.name}"
    assert shown(registry, *words, package="engine", resolve=True)["dtype"] == "quick"
    assert shown(registry, *words, package="engine.dtype", resolve=True) == "quick"


def test_a_config_that_cannot_run_can_be_shown(registry):
    assert shown(registry, "engine=vllm", "engine.port=x")["engine"]["port"] == "x"


def test_a_users_folder_is_searched(registry, tmp_path):
    (tmp_path / "mine" / "slo").mkdir(parents=True)
    (tmp_path / "mine" / "slo" / "strict.yaml").write_text("ttft_ms: 1.0\n")
    assert shown(registry, "-cd", str(tmp_path / "mine"), "slo=strict", package="slo") == {"ttft_ms": 1.0}


@pytest.mark.parametrize(
    ("words", "options", "line"),
    [
        (["-m"], {}, "--cfg shows one config; leave out -m"),
        (["-m", "engine.port=1,2"], {}, "engine.port=1,2: only one config can be shown; give one value and no -m"),
        (["engine.port=1,2"], {}, "engine.port=1,2: only one config can be shown; give one value"),
        (["engine=vlm"], {}, "engine=vlm: no such engine"),
        (["load.concurency=1"], {}, "load.concurency: unknown key; did you mean 'load.concurrency'?"),
        ([], {"package": "nope"}, "--package nope: the config has no such part"),
        (["engine.dtype=${nope}"], {"resolve": True}, "interpolation key 'nope' not found"),
        (["--zzz"], {}, "--zzz: unknown option"),
    ],
)
def test_faults_are_lines(words, options, line, registry):
    with pytest.raises(ConfigError) as caught:
        config_text(words, registry, **options)
    (fault,) = caught.value.faults
    assert fault.startswith(line)
    assert "\n" not in fault
