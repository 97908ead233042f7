from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from servebench.config import VERBS, help_text
from servebench.registry.registry import Registry


def test_help_lists_groups_with_the_plugins_options(registry: Registry, tmp_path: Path) -> None:
    """Each group is listed with all its options, a plugin's among them, and without the file that others inherit."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "another.yaml").write_text("defaults: [base]\nname: another\n")
    both = replace(registry, config_paths=(*registry.config_paths, str(tmp_path)))
    lines = help_text(both).splitlines()
    (engines,) = (line for line in lines if line.startswith("  engine "))
    assert engines.split(None, 1)[1] == "another, llamacpp, openai, sglang, trtllm, vllm"
    assert any(line.startswith("  load ") and "steady" in line for line in lines)


def test_help_lists_the_verbs(registry: Registry) -> None:
    """All verbs are listed, and those that a caller adds."""
    text = help_text(registry, {**VERBS, "diff": "compare two runs"})
    for verb in (*VERBS, "diff"):
        assert f"\n  {verb} " in text
    assert "  diff     compare two runs\n" in text


def test_help_fits_a_terminal(registry: Registry) -> None:
    """No line is longer than 110 characters."""
    assert max(len(line) for line in help_text(registry).splitlines()) <= 110
