"""Prompts and conversations of data sets: which are sent, in which order, with which lengths."""

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from servebench.contracts.settings import LengthSettings
from servebench.util.errors import ConfigError
from servebench.workload.dataset import DatasetWorkload, ShareGptWorkload, turns_sent
from servebench.workload.sources.prompts import builtin_prompts
from support.workloads import requests_of, workload_of

TEXTS = ["one", "one two three", "one two three four five six", "a b c d e f g h i j"]


workload = partial(workload_of, ShareGptWorkload)
asked = partial(requests_of, ShareGptWorkload)
own = partial(requests_of, DatasetWorkload)


@pytest.fixture
def dataset(tmp_path):
    """Four prompts of 1, 3, 6 and 10 tokens; the second has an answer of 4, the third an empty one."""
    answers: list[str | None] = [None, "a b c d", "", None]
    path = tmp_path / "set.jsonl"
    rows = [{"prompt": text, "answer": answer} for text, answer in zip(TEXTS, answers, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_prompts_are_cycled(pieces, text_of, dataset):
    """Every prompt comes once before any comes twice, each time round in another order."""
    texts = [text_of(request) for request in asked(pieces, 4 * 20 + 2, dataset=dataset)]
    rounds = [tuple(texts[start : start + 4]) for start in range(0, 80, 4)]
    assert all(sorted(some) == sorted(TEXTS) for some in rounds)
    assert len(set(rounds)) > 5
    assert set(Counter(texts).values()) == {20, 21}


def test_orders_differ_by_stream_and_seed(pieces, text_of):
    """Each stream and each seed has an order of its own, the same each time."""
    first = asked(pieces, 100)
    assert first == asked(pieces, 100)
    for other in (asked(pieces, 100, "c1-1"), asked(pieces, 100, seed=1)):
        assert [text_of(request) for request in other] != [text_of(request) for request in first]


def test_builtin(pieces, text_of):
    """The shipped set is what is asked by default, unchanged, with its length in tokens."""
    requests = asked(pieces, len(builtin_prompts()))
    assert {text_of(request) for request in requests} == set(builtin_prompts())
    assert [r.prompt_tokens for r in requests] == pieces.count([text_of(r) for r in requests])


def test_cold_salts_every_prompt(pieces, text_of, dataset):
    """With `cold` no two requests of any stream begin alike, and the length told is that of what is sent."""
    requests = [
        r for stream in ("warmup-c1-0", "c1-0") for r in asked(pieces, 50, stream, dataset=dataset, cache="cold")
    ]
    texts = [text_of(request) for request in requests]
    assert all(re.fullmatch(r"\[[0-9a-f]{12}\]", text.split("\n")[0]) for text in texts)
    assert {text.split("\n", 1)[1] for text in texts} == set(TEXTS)
    assert len({text[:14] for text in texts}) == 100
    assert [request.prompt_tokens for request in requests] == pieces.count(texts)


@pytest.mark.parametrize("cache", ["warm", "as_is"])
def test_others_are_left_as_they_are(pieces, text_of, dataset, cache):
    """Without `cold` prompts are sent as the data has them."""
    assert {text_of(request) for request in asked(pieces, dataset=dataset, cache=cache)} == set(TEXTS)


@pytest.mark.parametrize(
    ("low", "high", "kept"), [(None, None, TEXTS), (3, 6, TEXTS[1:3]), (2, None, TEXTS[1:]), (None, 1, TEXTS[:1])]
)
@pytest.mark.parametrize("cache", ["cold", "as_is"])
def test_limits(pieces, text_of, dataset, low, high, kept, cache):
    """Both limits are included and count the prompt without its salt."""
    requests = asked(pieces, dataset=dataset, min_prompt_tokens=low, max_prompt_tokens=high, cache=cache)
    assert {text_of(request).split("\n")[-1] for request in requests} == set(kept)


def test_limits_that_nothing_fits(pieces, dataset):
    """When no prompt fits, the error says how long they are."""
    with pytest.raises(ConfigError, match=r"no prompt of 7 to 9 tokens \(its prompts have 1 to 10\)"):
        asked(pieces, dataset=dataset, min_prompt_tokens=7, max_prompt_tokens=9)


def test_sampled_by_length(pieces, text_of, dataset):
    """With lengths asked for, the nearest prompts are taken, none twice before all were taken."""
    spec = LengthSettings(kind="uniform", min=5, max=7)
    requests = asked(pieces, 4, input_tokens=spec, dataset=dataset)
    assert requests[0].prompt_tokens == 6
    assert sorted(r.prompt_tokens or 0 for r in requests) == [1, 3, 6, 10]
    many = asked(pieces, 60, input_tokens=150)
    assert all(100 < (r.prompt_tokens or 0) < 200 for r in many)
    assert len({text_of(r) for r in many}) == 60


def test_a_folder_as_the_hub_has_it(pieces, text_of, dataset):
    """The package `datasets` reads a folder as it reads a data set of the hub."""
    pytest.importorskip("datasets")
    folder = Path(dataset).parent
    requests = asked(pieces, 4, dataset=f"hf:{folder}")
    assert {text_of(request) for request in requests} == set(TEXTS)
    with pytest.raises(ConfigError, match=r"split nothing\) cannot be read"):
        asked(pieces, 4, dataset=f"hf:{folder}", split="nothing")


def test_outputs_of_the_data(pieces, text_of, dataset):
    """A null `output_tokens` is as long as the data's own answer; 128 where it has none."""
    got = {text_of(request): request.output_tokens for request in asked(pieces, dataset=dataset)}
    assert got == dict(zip(TEXTS, [128, 4, 128, 128], strict=True))


def test_outputs_as_asked(pieces, dataset):
    """`output_tokens` wins over the data, as a number and as a distribution."""
    assert {r.output_tokens for r in asked(pieces, dataset=dataset, output_tokens=9)} == {9}
    spec = LengthSettings(kind="uniform", min=2, max=3)
    assert {r.output_tokens for r in asked(pieces, 60, dataset=dataset, output_tokens=spec)} == {2, 3}


def test_approximate(quarters, text_of):
    """An approximate tokenizer serves as well; lengths are what it says."""
    requests = asked(quarters, 20)
    assert [r.prompt_tokens for r in requests] == quarters.count([text_of(r) for r in requests])


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"dataset": "nothing.json"}, "no such file"),
        (
            {"min_prompt_tokens": 9, "max_prompt_tokens": 3},
            "min_prompt_tokens=9 is more than workload.max_prompt_tokens=3",
        ),
        ({"dataset": None}, "add dataset=FILE"),
    ],
)
def test_check(keys, fault):
    """What cannot be, or would not be heeded, is told before anything starts, one line each."""
    (line,) = workload(**keys).check()
    assert fault in line


def test_check_finds_nothing(dataset):
    """The shipped set and a file that is there are fine; the file is not read yet."""
    assert workload().check() == workload(dataset=dataset, min_prompt_tokens=3, max_prompt_tokens=3).check() == []


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def talk(name, turns, *, system=None):
    """A conversation of turns of two words, each answered with four."""
    begin = [] if system is None else [{"role": "system", "content": system}]
    pairs = [("user", f"{name} {turn}") if side == 0 else ("assistant", f"{name} says {turn} back")
             for turn in range(turns) for side in range(2)]  # fmt: skip
    return {"messages": [*begin, *({"role": role, "content": text} for role, text in pairs)]}


def contents(request):
    return [one.content for one in request.messages]


@pytest.fixture
def talks(tmp_path):
    return written(tmp_path / "talks.jsonl", talk("a", 3), talk("b", 1), talk("c", 2))


def test_every_turn_is_sent_after_the_one_before(pieces, talks):
    """The turns of a conversation come one after another with what the data has before them; a lone prompt has no session."""
    requests = own(pieces, 6, dataset=talks, active=1)
    sessions = {}
    for request in requests:
        sessions.setdefault(contents(request)[0].split()[0], []).append(request)
    assert [len(sessions[name]) for name in "abc"] == [3, 1, 2]
    assert [request.session_id for request in sessions["b"]] == [None]
    assert len({request.session_id for request in sessions["a"]}) == 1
    assert [contents(request) for request in sessions["a"]] == [
        ["a 0"],
        ["a 0", "a says 0 back", "a 1"],
        ["a 0", "a says 0 back", "a 1", "a says 1 back", "a 2"],
    ]
    places = [requests.index(request) for request in sessions["a"]]
    assert places == list(range(places[0], places[0] + 3))
    assert all(request.prompt_tokens == sum(pieces.count(contents(request))) for request in requests)
    assert {request.output_tokens for request in requests} == {pieces.count(["a says 0 back"])[0]}


def test_the_models_own_answers(pieces, talks):
    """With `real` a mark stands for each earlier answer, with the recorded one as its stand-in."""
    requests = own(pieces, 6, dataset=talks, active=1, history="real")
    recorded = {tuple(contents(request)) for request in own(pieces, 6, dataset=talks, active=1)}
    ids = {request.request_id for request in requests}
    for request in requests:
        assert len(request.answers) == len(request.messages) // 2
        assert {answer.of for answer in request.answers} <= ids
        assert (request.prompt_tokens is None) == bool(request.answers)
    assert {tuple(contents(request.filled({}))) for request in requests} == recorded


def test_recorded_calls_stay(pieces, tmp_path):
    """The results of tools answer to the recorded calls, so these are never replaced; tools go with every turn."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    rows = [{"role": "user", "content": "q"}, call, {"role": "tool", "content": "42", "tool_call_id": "1"}]
    path = written(tmp_path / "a.jsonl", {"messages": rows, "tools": [{"type": "function"}]})
    first, second = own(pieces, 2, dataset=path, history="real", active=1)
    assert [dict(one.extra) for one in second.messages[1:]] == [
        {"tool_calls": [{"id": "1"}], "content": None},
        {"tool_call_id": "1"},
    ]
    assert first.output_tokens == pieces.count([json.dumps([{"id": "1"}])])[0]
    assert second.output_tokens == 128
    assert first.extra == second.extra == {"tools": [{"type": "function"}]}


def test_a_conversation_as_one_text(pieces, talks):
    """Completions get a transcript, which the model continues."""
    requests = own(pieces, 6, dataset=talks, active=1, api="completions")
    prompts = {request.prompt for request in requests}
    assert "User: c 0\nAssistant: c says 0 back\nUser: c 1\nAssistant:" in prompts
    assert "b 0" in prompts
    assert [request.prompt_tokens for request in requests] == pieces.count([request.prompt for request in requests])


@pytest.mark.parametrize("row", [{"prompt": "q"}, {"messages": [{"role": "user", "content": "q"}]}])
@pytest.mark.parametrize(
    ("more", "setting", "expected"),
    [({"max_tokens": 9}, None, 9), ({}, None, 128), ({"max_tokens": 9}, 5, 5), ({"max_tokens": 200}, None, 200)],
)
def test_lengths_of_answers(pieces, tmp_path, row, more, setting, expected):
    """The setting, else the row's own, else 128: nothing limits what the row asks for."""
    path = written(tmp_path / "a.jsonl", {**row, **more})
    (request,) = own(pieces, 1, dataset=path, output_tokens=setting)
    assert request.output_tokens == expected


@pytest.mark.parametrize(
    ("keys", "count"), [({}, 1), ({"output_tokens": 4}, 1), ({"output_tokens": 4, "row": {"prompt": "q"}}, 0)]
)
def test_what_ends_an_answer_is_said(tmp_path, keys, count):
    """Where the data says no length, and where a setting replaces what it says."""
    rows = [keys.pop("row")] if "row" in keys else [{"prompt": "q"}, {"prompt": "r", "max_tokens": 8}]
    source = written(tmp_path / "a.jsonl", *rows)
    assert len(workload_of(DatasetWorkload, dataset=source, cache="cold", **keys).notes()) == count
    # without a salt, what is sent again is in the cache
    assert len(workload_of(DatasetWorkload, dataset=source, cache="as_is", **keys).notes()) == count + 1


def test_silence_is_said(tmp_path):
    path = written(tmp_path / "a.jsonl", {"conversations": []}, {"prompt": "q", "max_tokens": 2})
    (note,) = workload_of(DatasetWorkload, dataset=path, cache="cold").notes()
    assert "1 conversations" in note


def test_a_shared_system_message_stays_shared(pieces, tmp_path):
    """Within a stream: with another stream, or when the data is used again, its salt is another one."""
    rows = [talk(name, 1, system="Be kind.") for name in "abcd"]
    path = written(tmp_path / "a.jsonl", *rows, {"prompt": "x", "max_tokens": 1})
    firsts = [contents(one)[0] for one in own(pieces, 5, dataset=path, cache="cold")]
    assert len({text for text in firsts if text.endswith("Be kind.")}) == 1
    assert len(set(firsts)) == 2
    other = [contents(one)[0] for one in own(pieces, 5, "other", dataset=path, cache="cold")]
    again = [contents(one)[0] for one in own(pieces, 10, dataset=path, cache="cold")[5:]]
    assert not set(firsts) & {*other, *again}


@pytest.mark.parametrize(
    ("sizes", "count", "active", "expected"),
    [
        ([3, 1, 2, 9], 6, 1, [3, 1, 2]),
        ([3, 1, 2, 9], 5, 1, [3, 1, 1]),
        ([10] * 16, 16, 16, [1] * 16),
        ([10] * 50, 50, 16, [4, 4] + [3] * 14),
        ([1, 10, 10], 9, 3, [1, 4, 4]),
        ([2, 2], 2, 16, [1, 1]),
        ([], 0, 16, []),
    ],
)
def test_turns_sent(sizes, count, active, expected):
    """Whole conversations, unless too few would be begun."""
    assert turns_sent(sizes, count, active) == expected
    assert sum(expected) == count


def test_limits_are_of_the_longest_prompt(pieces, talks):
    lengths = {name: sum(pieces.count(text)) for name, text in {
        "a": ["a 0", "a says 0 back", "a 1", "a says 1 back", "a 2"], "b": ["b 0"]}.items()}  # fmt: skip
    few = own(pieces, 6, dataset=talks, active=1, max_prompt_tokens=lengths["a"] - 1)
    assert {contents(request)[0] for request in few} == {"b 0", "c 0"}
    only = own(pieces, 6, dataset=talks, active=1, min_prompt_tokens=lengths["a"])
    assert {contents(request)[0] for request in only} == {"a 0"}
