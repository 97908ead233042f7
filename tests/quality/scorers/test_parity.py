import json
import threading
from collections import Counter
from dataclasses import replace

import pytest

from servebench.contracts.quality import Endpoint, ItemAnswer
from servebench.contracts.settings import QualitySettings
from servebench.protocol.kinds.table import KINDS
from servebench.quality.scorers.parity import ParityScorer, parity_grade
from support.hostile import silent
from support.servers import ScriptedServer

HELD_S = 300.0
"""A test that waits so long has failed."""


class _Engine(ScriptedServer):
    """Answers with the prompt's last word; under load with another one if the prompt has `shaky`.

    A prompt that comes a second time is held until three requests are in flight. The first one that ends in `stalls` is never
    answered, and comes again as the first.
    """

    def __init__(self, *, logprobs=True, refuses=False, broken=False, stalls=None):
        self.how = {"logprobs": logprobs, "refuses": refuses, "broken": broken}
        self.stalls = stalls
        self.asked = Counter()
        self.full, self.stalled = threading.Event(), threading.Event()
        super().__init__(self._answer)
        self.endpoint = Endpoint(base_url=self.base_url, model="m")

    @property
    def bodies(self):
        return [request.json() for request in self.requests]

    def _answer(self, connection, request):
        body = request.json()
        if self.stalls and not self.stalled.is_set() and body["messages"][0]["content"].endswith(self.stalls):
            self.stalled.set()
            return silent(connection)
        with self.lock:
            self.asked[request.body] += 1
            again = self.asked[request.body] > 1
            if self.in_flight >= 3:
                self.full.set()
        if again:
            self.full.wait(HELD_S)
        return self.reply(body, self.full.is_set(), **self.how)

    @staticmethod
    def reply(body, crowded, *, logprobs, refuses, broken):
        if refuses and "logprobs" in body:
            return 422, {"error": "unknown field logprobs"}
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        if broken and crowded and "shaky" in prompt:
            return 503, {"error": "full"}
        words = [f"to {prompt.split()[-1]}", " differently" if crowded and "shaky" in prompt else " same"]
        choice = {"finish_reason": "stop"}
        if "messages" in body:
            choice["message"] = {"content": "".join(words)}
            told = {"content": [{"token": word, "logprob": -0.25} for word in words]}
        else:
            choice["text"] = "".join(words)
            told = {"tokens": words, "token_logprobs": [-0.25] * 2}
        return 200, {"choices": [choice | ({"logprobs": told} if logprobs and "logprobs" in body else {})]}


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "p.jsonl"
    rows = [{"prompt": f"{'shaky' if n % 3 == 0 else 'steady'} prompt {n}"} for n in range(6)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_each_prompt_is_asked_alone_and_under_load(prompts, api):
    with _Engine() as engine:
        rows = ParityScorer(QualitySettings(name="parity", path=prompts, api=api)).evaluate(
            engine.endpoint, count=None, concurrency=3
        )
        assert engine.most_in_flight == 3
        assert len(engine.bodies) == 1 + 6 + 6
        assert {body["temperature"] for body in engine.bodies} == {0}
    assert [row.grade.correct for row in rows] == [False, True, True, False, True, True]
    shaky, steady = rows[0], rows[1]
    assert shaky.answer.text == "to 0 same"
    assert shaky.grade.extracted == "to 0 differently"
    assert shaky.grade.note == "identical up to character 5"
    assert steady.grade.detail["alone"] == {"tokens": ["to 1", " same"], "logprobs": [-0.25, -0.25]}
    assert steady.grade.detail["loaded"] == steady.grade.detail["alone"]


@pytest.mark.parametrize("how", [{"refuses": True}, {"logprobs": False}])
def test_an_engine_without_log_probabilities_is_asked_all_the_same(prompts, how):
    with _Engine(**how) as engine:
        rows = ParityScorer(QualitySettings(name="parity", path=prompts)).evaluate(
            engine.endpoint, count=4, concurrency=3
        )
    assert all(row.answer.error is None for row in rows)
    assert rows[0].grade.detail["alone"] == {"tokens": None, "logprobs": None}
    assert [row.grade.correct for row in rows].count(None) == 0


def test_what_fails_under_load_is_told_and_not_judged(prompts):
    with _Engine(broken=True) as engine:
        rows = ParityScorer(QualitySettings(name="parity", path=prompts)).evaluate(
            engine.endpoint, count=None, concurrency=3
        )
    assert [row.grade.correct for row in rows] == [None, True, True, None, True, True]
    assert rows[0].grade.note.startswith("under load: HTTP 503")
    assert rows[0].answer.error is None


def test_an_engine_that_is_gone_is_told_in_every_row(prompts):
    with _Engine() as engine:
        endpoint = engine.endpoint
    rows = ParityScorer(QualitySettings(name="parity", path=prompts)).evaluate(endpoint, count=2, concurrency=2)
    assert all(row.answer.error and row.grade.correct is None for row in rows)


def test_what_was_answered_before_a_stop_is_not_asked_again(prompts, memory):
    """Alone and under load are kept apart, and what failed is asked again."""

    class Stopped(Exception):
        pass

    scorer = ParityScorer(QualitySettings(name="parity", path=prompts))
    # the fifth prompt is on its way when it is stopped, and comes again alone
    with _Engine(broken=True, stalls="prompt 4") as engine:

        def stop(words):
            if engine.stalled.is_set():
                raise Stopped

        with pytest.raises(Stopped):
            scorer.evaluate(replace(engine.endpoint, memory=memory, watch=stop), count=None, concurrency=3)
        assert (len(engine.bodies), len(memory.known)) == (1 + 5, 1 + 4)
        rows = scorer.evaluate(replace(engine.endpoint, memory=memory), count=None, concurrency=3)
        assert len(engine.bodies) == (1 + 5) + 2 + 6
    with _Engine() as engine:
        again = scorer.evaluate(replace(engine.endpoint, memory=memory), count=None, concurrency=3)
        assert len(engine.bodies) == 2, "those that failed under load"
    assert [row.grade.correct for row in rows] == [None, True, True, None, True, True]
    assert None not in [row.grade.correct for row in again]
    assert again[1] == rows[1]


def test_prompts_are_its_own_or_a_file(tmp_path):
    assert ParityScorer().check() == []
    assert len(ParityScorer().items(ParityScorer.source, 10, 0)) == 10
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "x"}')
    (fault,) = ParityScorer(QualitySettings(name="parity", path=str(bad))).check()
    assert "row 0 of" in fault
    (fault,) = ParityScorer(QualitySettings(name="parity", path="/nowhere.jsonl")).check()
    assert "/nowhere.jsonl" in fault


def test_equal_answers_of_other_length_share_their_beginning():
    grade = parity_grade(ItemAnswer(item_id="a", text="one two"), ItemAnswer(item_id="a", text="one"))
    assert (grade.correct, grade.note) == (False, "identical up to character 3")


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        "x",
        {"content": []},
        {"tokens": ["a"], "token_logprobs": []},
        {"tokens": ["a"], "token_logprobs": [None]},
    ],
)
def test_log_probabilities_that_are_none_are_left_out(told):
    assert KINDS["chat"].logprobs_of({"choices": [{"logprobs": told}]}) is None
