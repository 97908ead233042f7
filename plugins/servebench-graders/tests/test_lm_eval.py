"""The bridge to lm-evaluation-harness, as far as it goes without the harness; tests/real runs it."""

import pytest

from servebench.plugin import QualitySettings
from servebench_graders import lm_eval
from servebench_graders.lm_eval import LmEvalScorer
from servebench_graders.lm_eval_child import plain


def sample(**changes):
    common = {"doc_id": 3, "target": "7", "filter": "none"}
    return {**common, **changes}


def test_a_generated_sample_is_a_row():
    found = plain(
        sample(
            arguments=[(("[chat]",), {"until": ["\n"]})],
            resps=[["it is 7"]],
            filtered_resps=["7"],
            metrics=["exact_match"],
            exact_match=1.0,
        ),
        generates=True,
    )
    assert (found["text"], found["extracted"], found["correct"], found["score"]) == ("it is 7", "7", True, 1.0)
    assert found["prompt"] == "[chat]"
    assert found["detail"] == {"metric": "exact_match", "filter": "none", "exact_match": 1.0}


def test_a_sample_by_likelihood_says_the_likeliest_choice():
    found = plain(
        sample(
            arguments=[("q", " A"), ("q", " B")],
            resps=[[(-3.0, False)], [(-1.0, True)]],
            filtered_resps=[(-3.0, False), (-1.0, True)],
            metrics=["acc", "acc_norm"],
            target=0,
            acc=0.0,
            acc_norm=1.0,
        ),
        generates=False,
    )
    assert (found["text"], found["correct"], found["detail"]["acc_norm"]) == (" B", False, 1.0)
    assert found["target"] == " A"


def test_a_metric_between_is_a_score_and_neither_right_nor_wrong():
    found = plain(
        sample(arguments=[("q", {})], resps=[["x"]], filtered_resps=["x"], metrics=["bleu"], bleu=0.25), generates=True
    )
    assert (found["correct"], found["score"]) == (None, 0.25)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("KeyError: \"Spec 'x' is not a registered task/group/tag name\"", "lm-eval ls tasks"),
        ("ConnectionError: Couldn't reach 'allenai/ai2_arc' on the Hub", "dataset_path: json"),
        ("KeyError: 'logprobs'", "use tasks that generate"),
    ],
)
def test_what_goes_wrong_is_one_line_with_what_to_do(error, advice, monkeypatch):
    monkeypatch.setattr(lm_eval, "_run_child", lambda *_, **__: {"error": error})
    monkeypatch.setattr(lm_eval.importlib.util, "find_spec", lambda _: object())
    lm_eval._task_error.cache_clear()
    (fault,) = LmEvalScorer(QualitySettings(name="lm_eval", tasks=("x",))).check()
    assert advice in fault
    assert fault.startswith("quality.tasks=x: ")
    assert "\n" not in fault
    lm_eval._task_error.cache_clear()


def test_without_package_tasks_or_folder_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(lm_eval.importlib.util, "find_spec", lambda _: None)
    assert "pip install 'servebench-graders[lm-eval]'" in LmEvalScorer().check()[0]
    monkeypatch.setattr(lm_eval.importlib.util, "find_spec", lambda _: object())
    (fault,) = LmEvalScorer().check()
    assert "quality.tasks" in fault
    nowhere = QualitySettings(name="lm_eval", tasks=("x",), path="nowhere")
    (fault,) = LmEvalScorer(nowhere).check()
    assert "quality.path=nowhere" in fault
