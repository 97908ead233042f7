from importlib.metadata import entry_points
from importlib.resources import files

import yaml

from servebench.testing import registry
from servebench_llamacpp.engine import LlamaCppEngine, LlamaCppSettings


def test_servebench_finds_the_engine_by_its_entry_point():
    (point,) = [point for point in entry_points(group="servebench") if point.name == "llamacpp"]
    assert point.value == "servebench_llamacpp.plugin"
    found = registry()
    assert found.find("engine", "llamacpp") is LlamaCppEngine
    (info,) = [info for info in found.plugins if info.name == "llamacpp"]
    assert (info.status, info.error) == ("loaded", None)
    assert "pkg://servebench_llamacpp.conf" in found.config_paths


def test_the_config_holds_only_keys_that_the_engine_has():
    """The shipped file is in the package, inherits the base, and names fields of the settings."""
    text = files("servebench_llamacpp").joinpath("conf/engine/llamacpp.yaml").read_text()
    config = yaml.safe_load(text)
    assert config.pop("defaults") == ["base", "_self_"]
    assert LlamaCppSettings(**config).max_num_seqs == 8
