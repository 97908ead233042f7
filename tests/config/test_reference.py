from pathlib import Path

from servebench.config.reference import ConfigKey, config_reference, read_keys

PAGE = Path(__file__).parents[2] / "docs" / "config.md"


def test_the_page_of_config_keys_is_up_to_date():
    """Write it again with `make reference`."""
    assert PAGE.read_text() == config_reference()


def test_it_has_the_own_keys_of_engines():
    for key in ("engine.gpu_layers", "engine.continuous_batching", "load.search.tolerance", "study.starts"):
        assert f"| {key} |" in PAGE.read_text().replace("`", "").replace("\\", "")


def test_a_key_has_the_comment_above_it():
    purpose, keys = read_keys(
        "# What for.\ndefaults:\n  - base\n\nname: a\n# one\n# two\nx: 1\ny: null  # beside\nz:\n  # of z\n  w: {}\n"
    )
    assert purpose == "What for."
    assert keys == [ConfigKey("x", "1", "one two"), ConfigKey("y", "null", "beside"), ConfigKey("z.w", "{}", "of z")]
