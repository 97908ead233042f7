import json
from pathlib import Path

import pytest

from servebench.contracts.settings import QualitySettings
from servebench.quality.rows import GSM8K, MMLU, question_file
from servebench.quality.scorers.gsm8k import Gsm8kScorer
from servebench.quality.scorers.rerank import RerankScorer
from servebench.util.errors import ConfigError


@pytest.mark.parametrize("source", [MMLU, GSM8K], ids=["mmlu", "gsm8k"])
def test_questions_in_the_cache_are_not_fetched_again(source, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    kept = tmp_path / "quality" / source.sha256[:16] / Path(source.member).name
    with pytest.raises(ConfigError, match=f"{source.package} {source.version}"):
        question_file(source, tmp_path)
    kept.write_bytes(b"{}\n")
    assert question_file(source, tmp_path) == kept


def question(text, **more):
    return json.dumps({"query": text, "documents": ["a", "b"], "relevant": [0], **more}) + "\n"


def rerank_items(path, text):
    path.write_text(text, encoding="utf-8")
    scorer = RerankScorer(QualitySettings(name="rerank"))
    return scorer.items(path, 9, 0)


def test_a_file_of_an_editor_that_marks_utf_8(tmp_path):
    assert [one.prompt for one in rerank_items(tmp_path / "q.jsonl", "\ufeff" + question("è") + question("b"))] == [
        "è",
        "b",
    ]


def test_two_questions_of_one_id_are_refused(tmp_path):
    """The answer to one would be graded as that to the other."""
    with pytest.raises(ConfigError, match=r"row 2 .*'7'"):
        rerank_items(tmp_path / "q.jsonl", question("a", id="7") + question("b") + question("c", id=7))


def test_examples_that_leave_no_question_are_refused(tmp_path):
    """Before anything starts: no question would be asked, and nothing said."""
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps({"question": f"{n} + 1?", "answer": n + 1}) + "\n" for n in range(3)))
    assert len(Gsm8kScorer(QualitySettings(name="gsm8k", shots=2)).items(path, 9, 0)) == 1
    with pytest.raises(ConfigError, match=r"quality\.shots=3"):
        Gsm8kScorer(QualitySettings(name="gsm8k", shots=3)).items(path, 9, 0)
