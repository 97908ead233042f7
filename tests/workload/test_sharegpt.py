"""Prompts of real people."""

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from servebench.contracts.settings import LengthSettings
from servebench.util.errors import ConfigError
from servebench.workload.sharegpt import ShareGptWorkload
from servebench.workload.sources.prompts import builtin_prompts
from support.workloads import requests_of, workload_of

TEXTS = ["one", "one two three", "one two three four five six", "a b c d e f g h i j"]


workload = partial(workload_of, ShareGptWorkload)
asked = partial(requests_of, ShareGptWorkload)


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
    assert {text_of(request) for request in requests} == {prompt.text for prompt in builtin_prompts()}
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
    requests = asked(pieces, 4, input_tokens=spec, path=dataset)
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
        ({"path": "nothing.json"}, "no such file"),
    ],
)
def test_check(keys, fault):
    """What cannot be, or would not be heeded, is told before anything starts, one line each."""
    (line,) = workload(**keys).check()
    assert fault in line


def test_check_finds_nothing(dataset):
    """The shipped set and a file that is there are fine; the file is not read yet."""
    assert workload().check() == workload(dataset=dataset, min_prompt_tokens=3, max_prompt_tokens=3).check() == []
