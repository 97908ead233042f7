import json

import pytest

from servebench.contracts.quality import Endpoint, ItemAnswer
from servebench.contracts.settings import QualitySettings
from servebench.quality.ask import ask
from servebench.quality.scorers.gsm8k import Gsm8kScorer, number_of
from servebench.quality.scorers.mmlu import MmluScorer, letter_of
from servebench.util.errors import ConfigError
from support.servers import completion

MMLU = [
    {
        "question": f"q{i}",
        "answer_a": "1",
        "answer_b": "2",
        "answer_c": "3",
        "answer_d": "4",
        "correct_answer": "ABCD"[i % 4],
    }
    for i in range(20)
] + [{name: name for name in ("question", *(f"answer_{letter}" for letter in "abcd"))}]


def _lines(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize(
    ("text", "number"),
    [("2 + 2\n#### 1,234", "1234"), ("so 5, then 7.", "7"), ("-3.50", "-3.50"), ("none", None), ("#### $9\nor 4", "9")],
)
def test_number_of(text, number):
    assert number_of(text) == number


@pytest.mark.parametrize(
    ("text", "letter"),
    [("B", "B"), (" (C) because", "C"), ("The answer is D.", "D"), ("A good one", "A"), ("Apples", None), ("", None)],
)
def test_letter_of(text, letter):
    assert letter_of(text) == letter


def test_gsm8k_reads_both_shapes_and_grades_by_value(tmp_path):
    rows = [{"question": "a", "answer": "x\n#### 18"}, {"prompt": "b", "expected": "4"}]
    scorer = Gsm8kScorer()
    items = scorer.items(_lines(tmp_path / "g.jsonl", rows), 10, 0)
    assert [item.expected for item in items] == ["18", "4"]
    answers = [ItemAnswer(item_id="i", text=text) for text in ("#### 18.0", "17", "dunno")]
    answers.append(ItemAnswer(item_id="i", text="", error="down"))
    assert [scorer.judged(items[0], one).grade.correct for one in answers] == [True, False, False, None]


def test_mmlu_samples_the_same_items_of_a_seed_and_drops_headers(tmp_path):
    path = _lines(tmp_path / "m.jsonl", MMLU)
    scorer = MmluScorer()
    first = scorer.items(path, 5, 7)
    assert first == scorer.items(path, 5, 7)
    assert first != scorer.items(path, 5, 8)
    assert len(scorer.items(path, 100, 0)) == 20


@pytest.mark.parametrize(
    "change", [{"correct_answer": "5"}, {"correct_answer": ["A"]}, {"correct_answer": None}, {"answer_c": None}]
)
def test_an_mmlu_row_that_is_no_question_is_named(tmp_path, change):
    rows = [*MMLU[:3], {**MMLU[3], **change}, *MMLU[4:]]
    with pytest.raises(ConfigError, match=r"row 3 of .*m\.jsonl"):
        MmluScorer().items(_lines(tmp_path / "m.jsonl", rows), 2, 0)


@pytest.mark.parametrize("content", ["{not json", "[1]", '{"question": "x"}'])
def test_broken_files_are_one_line(tmp_path, content):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    for scorer in (MmluScorer(), Gsm8kScorer()):
        with pytest.raises(ConfigError) as told:
            scorer.items(path, 3, 0)
        assert "bad.jsonl" in str(told.value)


def _answer(connection, request):
    prompt = request.json()["messages"][0]["content"]
    if prompt.startswith("q3\n"):
        return 500, b"no"
    return (200, b"<html>") if prompt.startswith("q5\n") else (200, completion("B"))


def test_answers_keep_their_order_and_failures_are_answers(tmp_path, serve):
    scorer = MmluScorer()
    items = scorer.items(_lines(tmp_path / "m.jsonl", MMLU), 20, 0)
    answers = ask(items, Endpoint(base_url=serve(_answer).base_url, model="m"), concurrency=4)
    assert [answer.item_id for answer in answers] == [item.item_id for item in items]
    grades = [scorer.judged(item, answer).grade.correct for item, answer in zip(items, answers, strict=True)]
    assert (grades.count(True), grades.count(False), grades.count(None)) == (4, 14, 2)
    assert answers[3].error is not None
    assert "500" in answers[3].error
    assert "not a chat completion" in (answers[5].error or "")


@pytest.mark.parametrize("shots", [0, 3])
def test_a_gsm8k_row_without_an_answer_is_an_error_among_the_examples_too(tmp_path, shots):
    rows = [{"question": f"q{n}", "answer": n} for n in range(4)]
    scorer = Gsm8kScorer(QualitySettings(name="gsm8k", shots=shots))
    assert {one.expected for one in scorer.items(_lines(tmp_path / "g.jsonl", rows), 9, 0)} <= {"0", "1", "2", "3"}
    with pytest.raises(ConfigError, match=r"g\.jsonl is not a GSM8K question"):
        scorer.items(_lines(tmp_path / "g.jsonl", [{**one, "answer": "none"} for one in rows]), 9, 0)


@pytest.mark.parametrize(
    ("names", "sent"),
    [({}, {"max_tokens": 8, "temperature": 0.0}), ({"max_tokens": "other"}, {"other": 8})],
)
def test_a_question_has_the_field_names_of_its_server(tmp_path, serve, names, sent):
    server = serve(lambda connection, request: (200, completion("B")))
    items = MmluScorer().items(_lines(tmp_path / "m.jsonl", MMLU), 1, 0)
    (answer,) = ask(items, Endpoint(base_url=server.base_url, model="m", names=names), concurrency=1)
    body = server.requests[0].json()
    assert answer.error is None
    assert {name: body[name] for name in body if name not in ("model", "messages")} == sent
