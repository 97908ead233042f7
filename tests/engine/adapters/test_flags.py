"""Translating shared settings into flags."""

from dataclasses import replace

import pytest

from servebench.contracts.engine import LaunchContext
from servebench.contracts.settings import EngineSettings, GpuSettings, ModelSettings
from servebench.engine.adapters.flags import FlagTable, extra_arguments
from servebench.registry.registry import registry

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


@pytest.mark.parametrize(
    ("name", "own", "flag"),
    [
        ("vllm", {}, "--runner"),
        ("sglang", {}, "--is-embedding"),
        ("llamacpp", {"executable": "llama-server"}, "--embeddings"),
        ("llamacpp", {}, "embedding=true"),
    ],
)
def test_an_engine_that_generates_nothing_is_started_otherwise(name, own, flag, tmp_path):
    """For embeddings, and not for chats."""
    engine = registry().engine(name)
    context = LaunchContext(
        engine=type(engine).settings_type(name=name, **own),
        model=ModelSettings(name="m", path="/models/m.gguf"),
        gpu=GpuSettings(name="none"),
        port=1,
        cache_dir=tmp_path,
    )
    assert flag not in engine.command(context).argv
    assert flag in engine.command(replace(context, api="embeddings")).argv


@pytest.mark.parametrize(("engine", "words"), [
    ("vllm", ["--lora-modules", "a=/x", "b=/y"]), ("sglang", ["--lora-modules", "a=/x", "b=/y"]),
    ("lmdeploy", ["--lora-modules", "a=/x", "b=/y"]),
    ("transformers", ["--lora-modules", "a=/x", "--lora-modules", "b=/y"]),
])  # fmt: skip
def test_a_list_is_written_as_the_engine_reads_it(engine, words, tmp_path):
    """argparse keeps the last of repeated flags, and click takes repeated ones only."""
    found = registry().engine(engine)
    settings = type(found).settings_type(name=engine, extra_args={"lora-modules": ["a=/x", "b=/y"]})
    context = LaunchContext(
        engine=settings, model=ModelSettings(name="m"), gpu=GpuSettings(name="none"), port=1, cache_dir=tmp_path
    )
    argv = [*found.command(context).argv]
    at = argv.index("--lora-modules")
    assert argv[at : at + len(words)] == words


@pytest.mark.parametrize(("setting", "repeated", "at_once"), [
    (True, ["--f"], ["--f"]), ([True, None], ["--f"], ["--f"]), ([], [], []), (False, [], []),
    ([{"a": 1}, 2], ["--f", '{"a": 1}', "--f", "2"], ["--f", '{"a": 1}', "2"]), (0, ["--f", "0"], ["--f", "0"]),
])  # fmt: skip
def test_extra_args_are_arguments(setting, repeated, at_once):
    assert extra_arguments({"f": setting}) == repeated
    assert extra_arguments({"f": setting}, several_values=True) == at_once
