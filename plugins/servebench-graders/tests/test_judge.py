import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from servebench.plugin import Endpoint
from servebench_graders.judge import JudgeEndpoint, JudgeScorer, JudgeSettings
from servebench_graders.verdicts import better_of, score_of
from support.hostile import drip, flood
from support.servers import ScriptedServer, completion, reply


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"reason": "good", "score": 4}', 4),
        ('```json\n{"score": 5}\n```', 5),
        ('{"score": "3"}', 3),
        ('{"score": 2.0}', 2),
        ('{"score": 1} then {"score": 4}', 4),
        ("Score: 4", 4),
        ('"score": 3, because', 3),
        ('{"score": 9}', None),
        ('{"score": 0}', None),
        ('{"score": true}', None),
        ('{"score": 2.5}', None),
        ('{"score": null}', None),
        ('{"score": -1}', None),
        ("Lovely weather, 4 degrees.", None),
        ("", None),
        ("{" * 10_000, None),
    ],
)
def test_score_of(text, score):
    assert score_of(text, 5) == score


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"better": 1}', "first"),
        ('{"better": "2"}', "second"),
        ('{"reason": "same", "better": 0}', "tie"),
        ("better: 2", "second"),
        ('{"better": 3}', None),
        ("The first one.", None),
    ],
)
def test_better_of(text, place):
    assert better_of(text) == place


class _Server(ScriptedServer):
    """An endpoint that answers a chat with what a function makes of the prompt: text, (status, bytes) or a script."""

    def __init__(self, answer):
        self.answer = answer
        super().__init__(self._reply)

    def _reply(self, connection, request):
        said = self.answer(request.json()["messages"][0]["content"])
        if callable(said):
            return said(connection)
        return (200, completion(said, usage=(100, 10))) if isinstance(said, str) else said

    @property
    def seen(self):
        return [request.json()["messages"][0]["content"] for request in self.requests]

    @property
    def keys(self):
        return [request.headers.get("authorization") for request in self.requests]

    @property
    def formats(self):
        return [request.json().get("response_format") for request in self.requests]


def _scorer(url, **changes):
    judge = {"base_url": url, "model": "judge-1", "timeout_s": 60.0, **changes}
    return JudgeScorer(JudgeSettings(name="judge", timeout_s=60.0, judge=JudgeEndpoint(**judge)))


def _engine(text="An answer."):
    return _Server(lambda prompt: text)


def _judged(engine, scorer, count=6):
    return scorer.evaluate(Endpoint(base_url=engine.base_url, model="m"), count=count, concurrency=2)


def test_grades_by_a_rubric_twice_and_counts_tokens_and_cost():
    with _engine() as engine, _Server(lambda prompt: '{"reason": "fine", "score": 4}') as judge:
        scorer = _scorer(judge.base_url, input_usd_per_mtok=1.0, output_usd_per_mtok=10.0)
        assert scorer.check() == []
        rows = _judged(engine, scorer)
    assert len(rows) == 6
    assert len(judge.seen) == 12
    assert {row.grade.score for row in rows} == {0.75}
    assert {row.grade.correct for row in rows} == {None}
    detail = rows[0].grade.detail
    assert detail["judge_agrees"] is True
    assert (detail["judge_input_tokens"], detail["judge_output_tokens"]) == (200, 20)
    assert detail["judge_cost_usd"] == pytest.approx(0.0004)
    assert rows[0].grade.note == "fine"
    assert "An answer." in judge.seen[0]


def test_a_judge_that_contradicts_itself_is_told():
    turn = iter(range(1000))
    with _engine() as engine, _Server(lambda prompt: f'{{"score": {1 + next(turn) % 2}}}') as judge:
        rows = _judged(engine, _scorer(judge.base_url, concurrency=1))
    assert [row.grade.detail["judge_agrees"] for row in rows] == [False] * 6
    assert {row.grade.score for row in rows} == {0.125}


def _reference(folder, rows):
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), folder / "quality.parquet")
    return str(folder)


def _rows(answer):
    items = JudgeScorer().items(JudgeScorer.source, 100, 0)
    return [
        {"benchmark": "judge", "item_id": one.item_id, "prompt": one.prompt, "answer": answer, "outcome": "ok"}
        for one in items
    ]


def _prefers(word):
    """A judge with a taste: the answer that has the word, wherever it stands."""

    def say(prompt):
        first = prompt.split("[answer 1]")[1].split("[end of answer 1]")[0]
        second = prompt.split("[answer 2]")[1].split("[end of answer 2]")[0]
        return f'{{"better": {1 if word in first else 2 if word in second else 0}}}'

    return say


@pytest.mark.parametrize(
    ("taste", "score", "agrees"),
    [
        (_prefers("OURS"), 1.0, True),
        (_prefers("THEIRS"), 0.0, True),
        (_prefers("NOBODY"), 0.5, True),
        (lambda prompt: '{"better": 1}', 0.5, False),  # whoever stands first
    ],
)
def test_pairwise_changes_places(tmp_path, taste, score, agrees):
    folder = _reference(tmp_path / "ref", _rows("THEIRS"))
    with _engine("OURS") as engine, _Server(taste) as judge:
        scorer = _scorer(judge.base_url, reference=folder)
        assert scorer.check() == []
        rows = _judged(engine, scorer)
    assert {row.grade.score for row in rows} == {score}
    assert {row.grade.detail["judge_agrees"] for row in rows} == {agrees}
    if not agrees:
        assert {row.grade.detail["first_place_wins"] for row in rows} == {1.0}


def test_a_judge_can_be_held_to_a_schema(tmp_path):
    folder = _reference(tmp_path / "ref", _rows("THEIRS"))
    with _engine("OURS") as engine, _Server(lambda prompt: '{"reason": "", "score": 2, "better": 1}') as judge:
        for more, key, numbers in (({"scale": 3}, "score", [1, 2, 3]), ({"reference": folder}, "better", [0, 1, 2])):
            _judged(engine, _scorer(judge.base_url, enforce_schema=True, **more), count=2)
            schema = judge.formats[-1]["json_schema"]["schema"]
            assert schema["properties"][key]["enum"] == numbers
            assert list(schema["properties"]) == schema["required"] == ["reason", key]
        _judged(engine, _scorer(judge.base_url), count=2)
        assert judge.formats[-1] is None


def test_only_the_same_tasks_are_compared(tmp_path):
    rows = _rows("THEIRS")[:40]
    rows[0]["prompt"] += " Or not."
    folder = _reference(tmp_path / "ref", rows)
    with _engine("OURS") as engine, _Server(_prefers("OURS")) as judge:
        found = _judged(engine, _scorer(judge.base_url, reference=folder), count=None)
    unmatched = [row for row in found if row.grade.score is None]
    assert len(unmatched) == len(found) - 39
    assert all("the reference has no answer" in row.grade.note for row in unmatched)


HEAD = b"HTTP/1.1 200 OK\r\n"


def _drip(connection):
    drip(connection, HEAD + b"\r\n", b" ")


def _flood(connection):
    flood(connection, HEAD + b"\r\n")


def _cut(connection):
    connection.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"choices"')
    return False


def _garbage(connection):
    connection.sendall(b"\x00\x01 not http at all\r\n\r\n")
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "outcome", "note"),
    [
        ((500, b"out of order"), "http_error", "HTTP 500: out of order"),
        ((401, b'{"error": "bad key SECRETKEY"}'), "http_error", "bad key [redacted]"),
        ((302, b""), "http_error", "HTTP 302"),
        ((200, b"<html>\x1b[2J"), "protocol", "<html>\N{REPLACEMENT CHARACTER}[2J"),
        ((200, b'{"choices": []}'), "protocol", "it has no choices[0].message.content"),
        ((200, b'{"choices": [{"message": {"content": [1]}}]}'), "nonsense", "no verdict in the judge"),
        ((200, b"[" * 100_000), "protocol", "not a chat completion"),
        (
            (200, b'{"choices": [{"message": {"content": null}}], "usage": "many"}'),
            "nonsense",
            "no verdict in the judge",
        ),
        ("I would rather not say.", "nonsense", "I would rather not say."),
        ('{"score": 77}', "nonsense", "score"),
        (lambda: _drip, "timeout", "0.6 s"),
        (lambda: _flood, "protocol", "longer than"),
        (lambda: _cut, "protocol", "closed connection"),
        (lambda: _garbage, "protocol", "illegal"),
    ],
)
def test_whatever_the_judge_does_is_a_row(monkeypatch, said, outcome, note):
    monkeypatch.setenv("JUDGE_KEY", "SECRETKEY")
    answer = said() if callable(said) else said
    with _engine() as engine, _Server(lambda prompt: answer) as judge:
        timeout_s = 0.6 if outcome == "timeout" else 60.0
        scorer = _scorer(judge.base_url, api_key_env="JUDGE_KEY", timeout_s=timeout_s, give_up_after=2, concurrency=1)
        rows = _judged(engine, scorer, count=3)
    assert [row.answer.error for row in rows] == [None] * 3
    assert [row.grade.score for row in rows] == [None] * 3
    assert rows[0].grade.detail["judge_outcome"] == outcome
    assert note in rows[0].grade.note
    assert "\n" not in rows[0].grade.note
    assert "SECRETKEY" not in str(rows)
    assert judge.keys[0] == "Bearer SECRETKEY"


def test_a_judge_that_is_down_is_given_up_soon():
    with _Server(lambda prompt: "") as gone:
        url = gone.base_url
    with _engine() as engine:
        rows = _judged(engine, _scorer(url, concurrency=1, give_up_after=3), count=20)
    assert rows[0].grade.detail["judge_outcome"] == "refused"
    assert url in rows[0].grade.note
    assert rows[-1].grade.detail["judge_outcome"] == "abandoned"
    assert "3 times in a row" in rows[-1].grade.note


@pytest.mark.slow
def test_a_judge_that_is_busy_is_asked_again(monkeypatch):
    """While the reply's time lasts, and no sooner than it wants; one that names a longer time is taken at its word."""
    monkeypatch.setattr("servebench.quality.ask.PAUSE_S", 0.05)
    turn = iter(range(1000))

    def busy(wait):
        answer = reply(429, {"error": {"message": "too many\x1b[31m requests"}}, Retry_After=wait)
        return lambda connection: connection.sendall(answer)

    with _engine() as engine, _Server(lambda prompt: busy("0") if next(turn) % 3 else '{"score": 3}') as judge:
        rows = _judged(engine, _scorer(judge.base_url, concurrency=1))
        assert len(judge.seen) > 12
    assert {row.grade.score for row in rows} == {0.5}
    with _engine() as engine, _Server(lambda prompt: busy("60")) as judge:
        rows = _judged(engine, _scorer(judge.base_url, concurrency=1, give_up_after=2))
        assert len(judge.seen) == 2
    assert rows[0].grade.note == "no verdict: HTTP 429: too many requests"


def test_a_judge_that_stumbles_once_is_asked_on():
    turn = iter(range(1000))
    with (
        _engine() as engine,
        _Server(lambda prompt: (500, b"out of order") if next(turn) == 2 else '{"score": 3}') as judge,
    ):
        rows = _judged(engine, _scorer(judge.base_url, concurrency=1, give_up_after=2))
    assert [row.grade.score is None for row in rows] == [False, True, False, False, False, False]


def test_what_was_judged_before_a_stop_is_not_judged_again(memory):
    """Verdicts count for the judge that gave them; one that failed is asked for again."""
    turn = iter(range(1000))
    with _engine() as engine, _Server(lambda prompt: (500, b"") if next(turn) == 2 else '{"score": 3}') as judge:
        endpoint = Endpoint(base_url=engine.base_url, model="m", memory=memory)
        first = _scorer(judge.base_url, concurrency=1).evaluate(endpoint, count=4, concurrency=2)
        again = _scorer(judge.base_url, concurrency=1).evaluate(endpoint, count=4, concurrency=2)
        assert (len(engine.seen), len(judge.seen)) == (4, 8 + 1)
        _scorer(judge.base_url, model="judge-2").evaluate(endpoint, count=4, concurrency=2)
        assert (len(engine.seen), len(judge.seen)) == (4, 9 + 8)
    assert [row.grade.score is None for row in first] == [False, True, False, False]
    assert {row.grade.score for row in again} == {0.5}
    assert again[0] == first[0]
    assert {row.grade.detail["judge_input_tokens"] for row in again} == {200}


def test_an_engine_that_does_not_answer_is_not_judged():
    with _Server(lambda prompt: (500, b"no")) as engine, _Server(lambda prompt: '{"score": 3}') as judge:
        rows = _judged(engine, _scorer(judge.base_url))
    assert judge.seen == []
    assert all(row.answer.error and row.grade.score is None for row in rows)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"base_url": None}, "quality.judge.base_url is not set"),
        ({"model": None}, "quality.judge.model is not set"),
        ({"base_url": "judge:8000"}, "quality.judge.base_url=judge:8000"),
        ({"api_key_env": "NO_SUCH_VARIABLE_HERE"}, "NO_SUCH_VARIABLE_HERE"),
        ({"reference": "/nowhere"}, "quality.judge.reference"),
    ],
)
def test_what_is_wrong_with_the_settings_is_told_beforehand(changes, fault):
    (told,) = (
        _scorer("http://127.0.0.1:1/v1", **changes).check()
        if "base_url" not in changes
        else JudgeScorer(JudgeSettings(name="judge", judge=JudgeEndpoint(**{"model": "m", **changes}))).check()
    )
    assert fault in told
    assert "\n" not in told


def test_a_run_without_judged_answers_is_no_reference(tmp_path):
    folder = _reference(tmp_path / "ref", [{**row, "benchmark": "mmlu"} for row in _rows("x")])
    (told,) = _scorer("http://127.0.0.1:1/v1", reference=folder).check()
    assert "no judged answers" in told


def test_the_tasks_that_come_with_it_are_distinct():
    items = JudgeScorer().items(JudgeScorer.source, 1000, 0)
    assert len(items) == len({one.prompt for one in items}) == len({one.item_id for one in items}) == 64
