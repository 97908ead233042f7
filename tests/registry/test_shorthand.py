import pytest

from servebench.registry.shorthand import RENAMED, RENAMED_KEYS, SHORT_WORDS, as_typed, spelled_out

ATTACHED = ["launch=attach", "engine=openai"]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["engine=vllm", "load.rate=[1]"], ["engine=vllm", "load.rate=[1]"]),
        (["duration=60s", "starts=3", "budget=10m", "seed=4"],
         ["load.duration_s=60s", "study.starts=3", "study.budget=10m", "workload.seed=4"]),
        (["endpoint=http://h:1/v1"], [*ATTACHED, "launch.base_url=http://h:1/v1"]),
        (["endpoint=h:1"], [*ATTACHED, "launch.base_url=http://h:1"]),
        (["endpoint=h:1,https://i"], [*ATTACHED, "launch.base_url=http://h:1,https://i"]),
        (["engine=vllm", "endpoint=h:1"], ["launch=attach", "engine=vllm", "launch.base_url=http://h:1"]),
        (["endpoint="], [*ATTACHED, "launch.base_url="]),
        (["duration", "seed"], ["duration", "seed"]),
        (["endpoint=h:1/?key=a"], [*ATTACHED, 'launch.base_url="http://h:1/?key=a"']),
        (["endpoint=h:1/~a,[::1]:2/b%20c"], [*ATTACHED, 'launch.base_url="http://h:1/~a",http://[::1]:2/b%20c']),
        (["dataset=a.jsonl"], ["workload=dataset", "workload.dataset=a.jsonl"]),
        (["dataset=a.jsonl", "workload=sharegpt"], ["workload.dataset=a.jsonl", "workload=sharegpt"]),
        (["dataset=a.jsonl", "experiment=mine"], ["workload.dataset=a.jsonl", "experiment=mine"]),
    ],
)  # fmt: skip
def test_short_words_are_spelled_out(words, meant):
    assert spelled_out(words) == meant


@pytest.mark.parametrize(
    ("text", "words", "typed"),
    [
        ("cannot reach launch.base_url=http://h:1", ["endpoint=http://h:1"], "cannot reach endpoint=http://h:1"),
        ("cannot reach launch.base_url=http://h:1", ["launch.base_url=http://h:1"], None),
        ("study.budget must be a duration", ["budget=10"], "budget must be a duration"),
        ("study.budget must be a duration", ["budget=10", "study.budget=10"], None),
        ("study.budgets and my.study.budget", ["budget=10"], None),
    ],
)
def test_a_message_names_what_was_typed(text, words, typed):
    assert as_typed(text, words) == (typed or text)


def test_what_is_renamed_is_offered():
    from servebench.registry.conf import conf_dir, config_groups

    offered = config_groups([conf_dir()])
    for group, names in RENAMED.items():
        assert set(names.values()) <= set(offered[group])
        assert not set(names) & set(offered[group])
    assert not set(SHORT_WORDS) & set(offered)


def test_keys_that_are_renamed_are_keys():
    from servebench.config.keys import known_keys, section_types

    known = set(known_keys(section_types()))
    assert set(RENAMED_KEYS.values()) <= known
    assert not set(RENAMED_KEYS) & known
