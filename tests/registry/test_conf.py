"""Config groups and options are listed as Hydra finds them."""

from dataclasses import replace

from servebench.config.folders import composer
from servebench.contracts import hooks
from servebench.registry.conf import GROUP, config_folders, config_groups, likely_config_folders
from servebench.registry.registry import registry


def test_groups_and_options_are_those_of_hydra(tmp_path):
    """The built-in ones, those of a plugin's package and those of a plugin's folder; without the files that others inherit."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "another.yaml").write_text("defaults: [base]\nname: another\n")
    known = replace(registry(), config_paths=(*registry().config_paths, str(tmp_path)))
    found = config_groups(config_folders(known.config_paths))
    with composer(known) as hydra:
        assert found == {group: hydra.options(group) for group in hydra.groups if hydra.options(group)}
    assert {"another", "vllm", "ollama"} <= set(found["engine"])
    assert "base" not in found["engine"]


def test_completion_finds_the_folders_of_installed_plugins():
    assert likely_config_folders() == config_folders(registry().config_paths)
    assert GROUP == hooks.GROUP
