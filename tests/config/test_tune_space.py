"""The words of `servebench tune`, and the YAML files of its spaces."""

from __future__ import annotations

import pytest

from servebench.config import compose_jobs
from servebench.config.tune_space import load_recipes, load_space, parse_question, parse_space, split_words
from servebench.contracts.tuning import TuneQuestion
from servebench.registry.registry import registry
from servebench.util.errors import ConfigError

ENGINES = ("vllm", "sglang", "trtllm", "llamacpp", "lmdeploy")
ONE = {"parameters": {"engine.max_num_seqs": {"values": [1, 2]}}}


def faults(call, *args):
    with pytest.raises(ConfigError) as raised:
        call(*args)
    return raised.value.faults


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_space_whose_parameters_name_their_source(engine):
    space = load_space(engine, registry())
    assert len(space.parameters) >= 6
    assert space.source
    assert all(one.source and len(one.values) >= 2 for one in space.parameters.values())
    assert space.rules


@pytest.mark.parametrize("engine", ENGINES)
def test_what_changes_answers_is_marked(engine):
    for key, one in load_space(engine, registry()).parameters.items():
        named = any(word in key for word in ("cache-dtype", "cache_type", "cache-type", "specul", "quant"))
        assert one.answers == named, key


def test_the_words_of_the_question():
    own, rest = split_words(["engine=vllm", "tune.budget=90m", "+tune.seed=3", "load=quick"])
    assert own == ["tune.budget=90m", "+tune.seed=3"]
    assert rest == ["engine=vllm", "load=quick"]
    question = parse_question([*own, "tune.margin=5%", "tune.levels=8", "tune.only=[engine.threads]"])
    assert (question.budget_s, question.seed, question.share("margin")) == (5400.0, 3, 0.05)
    assert (question.levels, question.only) == ((8.0,), ("engine.threads",))
    assert parse_question([]) == TuneQuestion()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("tune.buget=5m", "unknown key; did you mean 'tune.budget'?"),
        ("tune.budget=60", "tune.budget must be a duration such as 90s"),
        ("tune.margin=0", "tune.margin must be a share"),
        ("tune.error=2", "tune.error must be a share"),
        ("tune.objective=throughput", "did you mean"),
        ("tune.trials=5", "tune.trials must be at least 6"),
        ("tune.trials=many", "tune.trials must be an integer (got 'many')"),
        ("tune.levels=[0]", "tune.levels[0] must be greater than 0"),
        ("tune.levels=[]", "tune.levels must not be empty"),
        ("tune.seed=1,2", "a tune has one question"),
        ("tune.count=[", "invalid override"),
    ],
)
def test_a_wrong_word_is_one_line(word, said):
    (line,) = faults(parse_question, [word])
    assert said in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "must be a mapping (got [])"),
        (None, "must be a mapping (got null)"),
        ({"parameter": {}}, "did you mean parameters?"),
        ({"parameters": {}}, "parameters: must not be empty"),
        ({"parameters": {"load.requests": {"values": [1]}}}, "parameters.load.requests"),
        ({"parameters": {"engine.port": {"values": [1]}}}, "parameters.engine.port"),
        ({"parameters": {"engine.x": {"values": []}}}, "parameters.engine.x.values: must not be empty"),
        (
            {"parameters": {"engine.x": {"values": 3}}},
            "parameters.engine.x.values: must be a list, as in [A,B] (got 3)",
        ),
        ({"parameters": {"engine.x": {"unit": "s"}}}, "parameters.engine.x: needs either values or range"),
        ({"parameters": {"engine.x": {"values": [1], "answer": True}}}, "did you mean answers?"),
        ({"parameters": {"engine.x": {"values": [1], "answers": 1}}}, "answers: must be true or false"),
        ({"parameters": {"engine.x": {"range": {"from": 1, "to": 9}}}}, "range: needs either a step"),
        ({"parameters": {"engine.x": {"range": {"from": 9, "to": 1, "step": 1}}}}, "range: must have 1 to"),
        ({"parameters": {"engine.x": {"range": {"from": 0, "to": 9, "factor": 2}}}}, "must begin above 0"),
        ({"parameters": {"engine.x": {"values": ["cores+1"]}}}, "write cores, cores/2 or cores*2"),
        (ONE | {"rules": [{"name": "a"}]}, "rules[0].set: is required"),
        (ONE | {"rules": {"name": "a"}}, "rules: must be a list"),
        (ONE | {"forbidden": [{"when": {"engine.x": 1}}]}, "forbidden[0].why: is required"),
    ],
)
def test_a_wrong_space_names_file_and_key(data, said):
    lines = faults(parse_space, "vllm", "my/vllm.yaml", data)
    assert any(said in line for line in lines)
    assert all(line.startswith("my/vllm.yaml: ") for line in lines)


def test_ranges_and_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    space = parse_space(
        "x",
        "x.yaml",
        {
            "parameters": {
                "engine.a": {"range": {"from": 1, "to": "cores", "factor": 2}},
                "engine.b": {"range": {"from": 2, "to": 6, "step": 2}},
                "engine.c": {"values": [None, "cores/2", "cores*2", "cores/99"]},
            }
        },
    )
    assert [one.values for one in space.parameters.values()] == [(1, 2, 4, 8), (2, 4, 6), (None, 4, 16, 1)]


def test_an_engine_without_a_space_is_told_how_to_write_one(tmp_path):
    (line,) = faults(load_space, "openai", registry())
    assert "there is no space of settings for engine=openai" in line
    assert "vllm" in line
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune/openai.yaml").write_text("parameters: {engine.extra_args.x: {values: [1, 2]}}")
    assert load_space("openai", registry(), [str(tmp_path)]).parameters.keys() == {"engine.extra_args.x"}


def test_a_space_of_the_users_own_takes_the_place_of_the_built_in_one(tmp_path):
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune/vllm.yaml").write_text("parameters: {engine.max_num_seqs: {values: [1, 2]}}")
    assert load_space("vllm", registry(), [str(tmp_path)]).parameters["engine.max_num_seqs"].values == (1, 2)
    assert compose_jobs(["--config-dir", str(tmp_path), "engine=vllm"], registry())


def test_recipes_of_a_file(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(
        "- {name: ours, set: {engine.max_num_seqs: 64}}\n- {engine: sglang, set: {engine.extra_args.x: 1}}\n"
    )
    assert load_recipes(str(path), "vllm") == [("ours", {"engine.max_num_seqs": 64})]
    assert [name for name, _ in load_recipes(str(path), "sglang")] == ["ours", "recipe 2"]
    path.write_text("- {name: ours, set: {load.requests: 64}}\n- 3\n")
    assert len(faults(load_recipes, str(path), "vllm")) >= 2
    (line,) = faults(load_recipes, str(tmp_path / "none.yaml"), "vllm")
    assert "cannot be read" in line
    path.write_text("a: [")
    assert "is not valid YAML" in faults(load_recipes, str(path), "vllm")[0]
