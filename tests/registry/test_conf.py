"""Config groups and options are listed as Hydra finds them."""

from dataclasses import replace

from servebench.config.folders import composer
from servebench.registry.conf import config_groups
from servebench.registry.registry import registry


def test_groups_and_options_are_those_of_hydra(tmp_path):
    """The built-in ones, those of a plugin's package and those of a plugin's folder; without the files that others inherit."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "another.yaml").write_text("defaults: [base]\nname: another\n")
    known = replace(registry(), config_paths=(*registry().config_paths, str(tmp_path)))
    found = config_groups(known)
    with composer(known) as hydra:
        assert found == {group: hydra.options(group) for group in hydra.groups if hydra.options(group)}
    assert {"another", "vllm", "ollama"} <= set(found["engine"])
    assert "base" not in found["engine"]
