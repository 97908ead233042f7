import json

import pytest

from servebench.plugin import ConfigError, Item, ItemAnswer, QualitySettings, Request
from servebench_graders.rouge import RougeScorer


def _item(expected):
    return Item(item_id="i", prompt="", expected=expected, max_tokens=9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expected", "text", "f"),
    [
        ("the cat sat", "the cat sat", 1.0),
        ("the cat sat", "THE CATS, sat.", 1.0),  # stemmed, case and marks left out
        ("police killed the gunman", "police kill the gunman", 1.0),
        ("police killed the gunman", "the gunman kill police", 0.5),  # the longest common run in order has two words
        ("a b c d", "x y", 0.0),
        ("a b", "", 0.0),
    ],
)
def test_rouge_l(expected, text, f):
    grade = RougeScorer().grade(_item(expected), ItemAnswer(item_id="i", text=text))
    assert grade.score == pytest.approx(f)
    assert grade.correct is None
    assert set(grade.detail) == {"rouge1", "rouge2", "rougeL"}


def test_an_answer_that_never_came_has_no_score():
    grade = RougeScorer().grade(_item("a"), ItemAnswer(item_id="i", text="", error="down", outcome="refused"))
    assert (grade.correct, grade.score) == (None, None)


def test_a_file_of_references_is_asked(tmp_path):
    path = tmp_path / "r.jsonl"
    rows = [{"prompt": "Say hi", "reference": "hi"}, {"id": 7, "article": "Long text.", "highlights": "Text."}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    scorer = RougeScorer(QualitySettings(name="rouge", path=str(path)))
    assert not scorer.grades_load
    first, second = scorer.items(path, 10, 0)
    assert (first.item_id, first.prompt, first.expected) == ("rouge-0", "Say hi", "hi")
    assert (second.item_id, second.expected) == ("7", "Text.")
    assert second.prompt.startswith("Summarise")
    assert "Long text." in second.prompt


def test_a_row_without_a_reference_is_one_line(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"prompt": "x"}')
    with pytest.raises(ConfigError, match=r"row 0 of .*r\.jsonl"):
        RougeScorer().items(path, 1, 0)


def test_the_loads_summaries_are_graded(record):
    requests = [
        Request(request_id="a", prompt="p", reference={"summary": "The bridge fell in May."}),
        Request(request_id="b", prompt="p"),
        Request(request_id="c", prompt="p", reference={"summary": "x"}),
    ]
    records = [record("a", "In May the bridge fell."), record("b", "no"), record("c", outcome="reset", error="gone")]
    scorer = RougeScorer()
    assert scorer.grades_load
    first, second = scorer.grade_load(requests, records)
    assert 0 < first.grade.score < 1
    assert (second.grade.score, second.answer.error) == (None, "gone")
