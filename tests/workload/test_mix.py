"""Several workloads at once, and what goes with the requests of any."""

from collections import Counter

import pytest

from servebench.contracts.request import Request
from servebench.workload.build.requests import add_extras
from servebench.workload.mix import MixSettings, MixWorkload
from servebench.workload.unique import UniqueSettings, UniqueWorkload


def mix(parts, **keys):
    return MixWorkload(MixSettings(name="mix", parts=parts, **keys))


def test_weights(pieces):
    """Parts come as often as their weights say, in a random order; one of weight 0 never."""
    parts = {"unique": {"weight": 3, "input_tokens": 64}, "sharegpt": {}, "rag_prefix": {"weight": 0}}
    requests = mix(parts).requests(400, stream="c1-0", tokenizer=pieces)
    names = [request.request_id.split("-")[2] for request in requests]
    assert len({request.request_id for request in requests}) == 400
    assert Counter(names)["unique"] == pytest.approx(300, abs=35)
    assert set(names) == {"unique", "sharegpt"}
    assert names[:300].count("sharegpt") > 40


def test_a_part_is_what_the_workload_gives(pieces):
    """The requests of a part are those of its workload, in its order, with the mix's seed and api."""
    found = mix({"mine": {"workload": "unique", "input_tokens": 50}}, seed=4, api="completions").requests(
        5, stream="c1-0", tokenizer=pieces
    )
    alone = UniqueWorkload(UniqueSettings(name="unique", seed=4, api="completions", input_tokens=50))
    assert list(found) == list(alone.requests(5, stream="c1-0-mine", tokenizer=pieces))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, "workload.parts is empty"),
        ({"unique": {"weight": -1}}, "workload.parts.unique.weight must be at least 0 (got -1)"),
        ({"uniqe": {}}, "workload.parts.uniqe: no workload named 'uniqe'"),
        ({"unique": {"documents": 3}}, "workload.parts.unique.documents"),
        ({"unique": {"input_tokens": "many"}}, "workload.parts.unique.input_tokens"),
        ({"sharegpt": {"dataset": "no.json"}}, "workload.parts.sharegpt.dataset=no.json"),
        ({"mix": {}}, "workload.parts.mix"),
        ({"unique": {"weight": True}}, "workload.parts.unique.weight must be a number"),
        ({"unique": {"wieght": 2}}, "did you mean 'workload.parts.unique.weight'"),
        ({"unique": {"adapters": ["a"]}}, "workload.parts.unique.adapters"),
        ({"unique": {"input_tokens": {"kind": "uniform"}}}, "workload.parts.unique.input_tokens: kind=uniform needs"),
    ],
)
def test_mistakes(parts, said):
    """Told before anything starts, with the part's name."""
    assert any(said in line for line in mix(parts).check())


def test_lengths_belong_to_the_parts():
    """A length that no part would heed is told."""
    assert len(mix({"unique": {}}, input_tokens=5).check()) == 1
    assert mix({"unique": {}}).check() == []


def settings(**keys):
    return UniqueSettings(name="unique", **keys)


def test_adapters_by_popularity():
    """The k-th adapter with a weight of 1 / k^skew; the same request always the same."""
    asked = settings(adapters=("a", "b", "c"), adapter_skew=1.0)
    requests = [add_extras(Request(request_id=f"r{n}", prompt=""), asked) for n in range(2200)]
    found = Counter(request.extra["model"] for request in requests)
    assert [found[name] for name in "abc"] == pytest.approx([1200, 600, 400], abs=90)
    assert requests == [add_extras(Request(request_id=f"r{n}", prompt=""), asked) for n in range(2200)]


def test_a_session_keeps_its_adapter_and_priority():
    """All requests of a session are alike in these."""
    asked = settings(adapters=tuple("abcdefgh"), priorities=(0, 1, 2, 3))
    some = [add_extras(Request(request_id=f"r{n}", prompt="", session_id="s"), asked).extra for n in range(20)]
    assert len({str(extra) for extra in some}) == 1
    others = {
        add_extras(Request(request_id="r", prompt="", session_id=f"s{n}"), asked).extra["priority"] for n in range(60)
    }
    assert others == {0, 1, 2, 3}


def test_nothing_to_wear():
    """Without adapters and priorities a request stays as it is; what it brings itself stays, too."""
    request = Request(request_id="r", prompt="", extra={"top_k": 4})
    assert add_extras(request, settings()) is request
    assert add_extras(request, settings(priorities=(5,))).extra == {"top_k": 4, "priority": 5}
