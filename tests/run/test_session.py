"""One study has one set of prompts, whichever of its engines sized them."""

import gzip
import shutil
from dataclasses import replace

import numpy as np
import pytest

from servebench.contracts.request import PriorAnswer, Request
from servebench.engine.tokenize import EmulatedTokenizer
from servebench.run.session import PromptSource
from servebench.store.prompts import SizedPrompts, adopt_prompts, keep_prompts, read_prompts, strange_prompts
from servebench.util.errors import StoreError
from servebench.workload.multi_turn import MultiTurnWorkload
from servebench.workload.unique import UniqueWorkload
from support.fake_engine import CoarseTokenizer
from support.settings import run_settings


def source(tmp_path, tokenizer, kind=UniqueWorkload, **changes):
    settings = run_settings()
    workload = kind.settings_type(
        name=kind.name, **({"input_tokens": 128} if kind is UniqueWorkload else {}), **changes
    )
    return PromptSource(kind(workload), tokenizer, replace(settings, workload=workload), tmp_path)


def texts(prompts):
    return [request.messages or request.prompt for request in prompts.requests]


def test_a_later_engine_sends_the_prompts_of_the_first(tmp_path):
    first = source(tmp_path, EmulatedTokenizer()).prompts(20, "c2-r0")
    later = source(tmp_path, CoarseTokenizer()).prompts(20, "c2-r0")
    assert texts(later) == texts(first)
    assert (later.tokenizer, later.exact) == (first.tokenizer, False), "and its points say who sized them"
    assert texts(source(tmp_path, CoarseTokenizer()).prompts(8, "c2-r0")) == texts(first)[:8]
    assert first.exact
    assert source(tmp_path, EmulatedTokenizer()).prompts(20, "c2-r0") == first


def test_more_prompts_than_the_first_engine_needed_are_as_long_as_the_first_ones(tmp_path):
    few = source(tmp_path, EmulatedTokenizer()).prompts(20, "c2-r0")
    many = source(tmp_path, CoarseTokenizer()).prompts(60, "c2-r0")
    assert texts(many)[:20] == texts(few)
    assert len({request.request_id for request in many.requests}) == 60
    counts = EmulatedTokenizer().count([request.messages[0].content for request in many.requests])
    assert np.mean(counts[20:]) == pytest.approx(np.mean(counts[:20]), rel=0.02)
    assert texts(source(tmp_path, EmulatedTokenizer()).prompts(60, "c2-r0")) == texts(many)


@pytest.mark.parametrize("change", [{"seed": 7}, {"input_tokens": 64}])
def test_a_changed_workload_makes_other_prompts(tmp_path, change):
    first = source(tmp_path, EmulatedTokenizer()).prompts(5, "c2-r0")
    changed = replace(run_settings().workload, name="unique", **{"input_tokens": 128, **change})
    other = PromptSource(
        UniqueWorkload(changed), CoarseTokenizer(), replace(run_settings(), workload=changed), tmp_path
    )
    assert other.prompts(5, "c2-r0").tokenizer == "coarse"
    assert texts(other.prompts(5, "c2-r0")) != texts(first)


def test_conversations_are_stored_whole(tmp_path):
    first = source(tmp_path, EmulatedTokenizer(), MultiTurnWorkload).prompts(30, "c2-r0")
    assert any(request.answers for request in first.requests)
    assert source(tmp_path, CoarseTokenizer(), MultiTurnWorkload).prompts(30, "c2-r0").requests == first.requests


def test_a_trace_is_stored_for_each_number(tmp_path):
    """Its arrival times are those of the whole: more prompts may not continue fewer."""
    prompts = source(tmp_path, EmulatedTokenizer())
    few, many = (prompts.prompts(count, "replay-r0", whole=True) for count in (10, 20))
    assert [len(one.requests) for one in (few, many)] == [10, 20]
    assert all("more" not in request.request_id for request in many.requests)


def test_what_json_would_change_is_not_stored(tmp_path):
    odd = SizedPrompts((Request(request_id="a", prompt="p", reference=(1, 2)),), "t", True)
    assert keep_prompts(tmp_path / "a.json.gz", odd) == odd
    assert read_prompts(tmp_path / "a.json.gz") is None


def test_the_first_of_two_that_size_at_once_wins(tmp_path):
    path = tmp_path / "k" / "a.json.gz"
    one, two = (SizedPrompts((Request(request_id="a", prompt=text),), text, True) for text in "xy")
    assert keep_prompts(path, one) == keep_prompts(path, two) == one
    assert list(path.parent.iterdir()) == [path]
    path.write_bytes(gzip.compress(b"{"))
    with pytest.raises(StoreError, match="delete it"):
        read_prompts(path)
    answer = PriorAnswer(of="a", mark="m", stand_in="s")
    held = SizedPrompts((Request(request_id="b", prompt="m", answers=(answer,), after=("a",)),), "t", False)
    assert keep_prompts(path.with_name("b.json.gz"), held) == read_prompts(path.with_name("b.json.gz")) == held


def test_prompts_are_signed_for_their_place_and_a_changed_one_is_strange(tmp_path, monkeypatch):
    """A prompt is sent to the engine, so it may not be a stranger's; gunzip still shows the file as JSON."""
    monkeypatch.setenv("SERVEBENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "prompts"
    path, moved = folder / "unique-1" / "c1-r0.json.gz", folder / "unique-2" / "c1-r0.json.gz"
    odd = Request(request_id="a", prompt="p", schema={"properties": {"type": "object", "seal": {"x": 1}}})
    for prompts in (SizedPrompts((odd,), "t", True), SizedPrompts((), "t", True)):
        shutil.rmtree(folder, ignore_errors=True)
        keep_prompts(path, prompts)
        assert strange_prompts(folder) == []
        data = gzip.decompress(path.read_bytes())
        for change in (
            data.replace(b'"t"', b'"u"'),
            data[: data.rindex(b',"seal":')] + b"}",
            data[:-1] + b',"requests":[]}',
            data.replace(b'"mac":"', b'"mac":"0'),
        ):
            path.write_bytes(gzip.compress(change))
            assert strange_prompts(folder) == [path]
        path.write_bytes(gzip.compress(data))
        moved.parent.mkdir()
        path.rename(moved)
        assert strange_prompts(folder) == [moved]
        adopt_prompts(folder)
        assert (strange_prompts(folder), read_prompts(moved)) == ([], prompts)
    moved.write_bytes(moved.read_bytes()[:9])
    with pytest.raises(StoreError):
        strange_prompts(folder)
