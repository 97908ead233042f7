import json

import pytest

from servebench.plugin import Item, ItemAnswer, QualitySettings
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
