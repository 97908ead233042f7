"""Translating shared settings into flags."""

import pytest

from servebench.contracts.settings import EngineSettings
from servebench.engine.adapters.flags import FlagTable

TABLE = FlagTable(flags={"max_num_seqs": "--max-num-seqs"}, switches={"prefix_caching": (["--cache"], ["--no-cache"])})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_num_seqs": 4, "extra_args": {"max_num_seqs": 8}}, ["engine.extra_args.max_num_seqs"]),
        ({"max_num_seqs": 4, "extra_args": {"--max-num-seqs": 8}}, ["engine.extra_args.--max-num-seqs"]),
        ({"prefix_caching": True, "extra_args": {"no-cache": True}}, ["engine.extra_args.no-cache"]),
        ({"extra_args": {"max-num-seqs": 8}}, []),
        ({"max_num_seqs": 4, "extra_args": {"max-model-len": 8}}, []),
        ({"seed": 3}, ["engine.seed=3"]),
    ],
)
def test_a_flag_given_twice_and_one_that_is_missing_are_problems(settings, named):
    assert [line.split(":")[0] for line in TABLE.unsupported(EngineSettings(name="e", **settings))] == named


@pytest.mark.parametrize("table", ["flags", "switches", "unsupported_reasons"])
def test_a_flag_table_takes_shared_settings_only(table):
    """A key that is none would be dropped: its flag would never reach the engine."""
    with pytest.raises(ValueError, match="max_num_sequences: not a shared setting"):
        FlagTable(**{table: {"max_num_sequences": "--max-num-seqs"}})
