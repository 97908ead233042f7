"""The pages of the documentation that are written from the code."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("reference", ROOT / ".ci" / "reference.py")
reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(reference)


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_up_to_date(name):
    """Write it again with `make reference`."""
    assert (ROOT / "docs" / name).read_text() == reference.PAGES[name]()


def test_it_has_the_own_keys_of_engines():
    for key in ("engine.gpu_layers", "engine.continuous_batching", "load.search.tolerance", "study.starts"):
        assert f"| {key} |" in (ROOT / "docs" / "config.md").read_text().replace("`", "").replace("\\", "")


def test_a_key_has_the_comment_above_it():
    purpose, keys = reference.read_keys(
        "# What for.\ndefaults:\n  - base\n\nname: a\n# one\n# two\nx: 1\ny: null  # beside\nz:\n  # of z\n  w: {}\n"
    )
    assert purpose == "What for."
    assert keys == [
        reference.ConfigKey("x", "1", "one two"),
        reference.ConfigKey("y", "null", "beside"),
        reference.ConfigKey("z.w", "{}", "of z"),
    ]
