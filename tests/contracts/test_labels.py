import pytest

from servebench.contracts.labels import LabelSource, engine_colours, labels_of


def runs(*facts, study="1122-k7x_a"):
    """One source for each dict of facts; `config` holds what its overrides say."""
    found = []
    for index, fact in enumerate(facts):
        words = fact.pop("words", ())
        config = {}
        for word in words:
            group, _, key = word.partition("=")[0].partition(".")
            config.setdefault(group, {})[key or "name"] = word.partition("=")[2]
        known = {"engine": "vllm", "workload": "unique", "model": "m", "study": study}
        found.append(LabelSource(key=str(index), overrides=tuple(words), config=config, **{**known, **fact}))
    return found


@pytest.mark.parametrize(
    ("facts", "texts"),
    [
        ([{}], ["vllm"]),
        ([{}, {"engine": "sglang"}], ["vllm", "sglang"]),
        ([{}, {"workload": "rag_prefix"}], ["vllm · unique", "vllm · rag_prefix"]),
        ([{"engine": "a"}, {"engine": "b", "workload": "rag"}], ["a · unique", "b · rag"]),
        ([{"model": "x"}, {"model": "y"}], ["x", "y"]),
        ([{}, {"engine": "failed_early", "model": "", "workload": ""}], ["vllm", "failed_early"]),
        ([{"words": [f"engine.threads={n}", "load.requests=9"]} for n in (1, 2)], ["threads=1", "threads=2"]),
        (
            [{"engine": e, "words": [f"engine={e}", f"engine.n={n}"]} for e in "ab" for n in (1, 2)],
            ["a · n=1", "a · n=2", "b · n=1", "b · n=2"],
        ),
        ([{"engine": "a", "words": ["engine.n=1"]}, {"engine": "b", "words": ["engine.n=2"]}], ["a", "b"]),
        ([{"version": "1"}, {"version": "2"}], ["1", "2"]),
        ([{}, {}], ["vllm (1)", "vllm (2)"]),
        ([{"study": "1122-k7x_a"}, {"study": "mine"}], ["1122-k7x vllm", "mine vllm"]),
        (
            [{"words": [f"engine.n={n}"], "workload": w} for w in "uv" for n in (1, 2)],
            ["n=1 · u", "n=2 · u", "n=1 · v", "n=2 · v"],
        ),
    ],
)
def test_a_label_says_what_differs_in_its_view(facts, texts):
    assert [label.text for label in labels_of(runs(*facts)).values()] == texts


def source(key, value, *, where="workload"):
    config = {where: {key: value}}
    return LabelSource(key=str(value), study="s", engine="vllm", overrides=(f"{where}.{key}=x",), config=config)


@pytest.mark.parametrize(
    ("key", "values", "texts"),
    [
        ("turns", [{"kind": "fixed", "value": 2}, 3], ["turns={kind:fixed,value:2}", "turns=3"]),
        ("output_tokens", [{"kind": "uniform", "min": 8, "max": 24}, 16], ["output_tokens=8..24", "output_tokens=16"]),
        ("until", [None, "10%"], ["until=null", "until=10%"]),
        ("exact", [True, False], ["exact=true", "exact=false"]),
        ("of", [[1, 3], [2]], ["of=[1,3]", "of=[2]"]),
    ],
)
def test_a_value_is_written_as_in_a_config_file(key, values, texts):
    assert [one.text for one in labels_of([source(key, value) for value in values]).values()] == texts


def test_null_leaves_a_setting_to_the_engine():
    found = labels_of([source("slots", value, where="engine") for value in (None, 8)])
    assert [one.text for one in found.values()] == ["slots=default", "slots=8"]


def test_values_that_differ_behind_the_cut_only_are_whole():
    long = [{"kind": "normal", "mean": 4.0, "stdev": 2.0, "min": 1, "max": most} for most in (8, 9)]
    texts = [one.text for one in labels_of([source("turns", value) for value in long]).values()]
    assert [text[-len("max:8}") :] for text in texts] == ["max:8}", "max:9}"]
    (cut, _) = (one.text for one in labels_of([source("turns", value) for value in (long[0], 3)]).values())
    assert cut.endswith("…")


def test_a_series_has_one_name_and_one_colour_over_workloads():
    found = labels_of(runs(*({"engine": e, "workload": w} for w in "uv" for e in ("vllm", "sglang")))).values()
    assert [(one.series, one.workload) for one in found] == [
        ("vllm", "u"), ("sglang", "u"), ("vllm", "v"), ("sglang", "v"),
    ]  # fmt: skip
    assert [one.colour for one in found] == [0, 1, 0, 1]
    swept = labels_of(runs(*({"words": [f"engine.n={n}"]} for n in range(5)))).values()
    assert len({one.colour for one in swept}) == 5


def test_an_engine_has_the_same_colour_in_every_view():
    assert engine_colours(["sglang"])["sglang"] == engine_colours(["vllm", "sglang", "mine"])["sglang"]
    assert engine_colours(["vllm_cpu"]) == {"vllm_cpu": 0}
    names = [f"engine{number}" for number in range(20)]
    assert len(set(engine_colours(names).values())) == 20
