"""What every scorer plugin must satisfy, as tests to inherit.

    class TestMine(ScorerConformance):
        scorer = MyScorer
        questions = ({"prompt": "2 + 2 =", "answer": "4"}, {"prompt": "3 + 4 =", "answer": "7"}, ...)

        def right(self, item):
            return item.expected

The last test runs the scorer with the command, on a server in this process.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from servebench.contracts.quality import Endpoint, Grade, Item, ItemAnswer, Judged, Scorer
from servebench.contracts.request import Message, Request
from servebench.contracts.results import Record
from servebench.contracts.settings import QualitySettings
from servebench.testing.command import (
    assert_is_installed,
    attach_overrides,
    overrides,
    run_in_another_process,
    run_servebench,
)
from servebench.testing.server import FakeServer, plain_server
from servebench.util.errors import ConfigError, QualityError

MODEL = "model"
SHOWN = 12
NONSENSE = (
    *("", " \n\t ", "\x00", "?" * 100_000, "9" * 5_000, "{" * 5_000),
    *('{"score": NaN}', "```", "#### ", "\u202e\U0001f600 …"),
)
"""Answers that models also give."""


class ScorerConformance:
    """Inherit from this class, set `scorer`, and declare what the suite cannot know.

    Attributes:
        scorer: the class under test.
        settings: quality settings for the tests, in addition to those that the suite sets.
        questions: at least four rows of a question file, so that samples differ; none for a scorer that grades the load.
        broken: texts of question files that must be rejected with a ConfigError.
        references: for a scorer that grades the load: references of requests that it can grade.
        wrong: an answer that is wrong for every question.
    """

    scorer: ClassVar[type[Scorer]]
    settings: ClassVar[Mapping[str, Any]] = {}
    questions: ClassVar[Sequence[Mapping[str, Any]]] = ()
    broken: ClassVar[Sequence[str]] = ("", "not JSON\n", '{"unknown": 1}\n')
    references: ClassVar[Sequence[Any]] = ()
    wrong: ClassVar[str] = "I would rather not say."

    def right(self, item: Item) -> str:
        """Return a right answer to a question."""
        raise NotImplementedError("define right(self, item), which returns a right answer")

    def right_answer(self, item: Item) -> ItemAnswer:
        """Return the right answer to a question; define it for answers that are more than a text."""
        return ItemAnswer(item_id=item.item_id, text=self.right(item))

    def make(self, **settings: Any) -> Scorer:
        """Return the scorer with its settings."""
        values = {"name": self.scorer.name, **self.settings, **settings}
        return self.scorer(self.scorer.settings_type(**values))

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """Return a file with the questions."""
        path = tmp_path / "questions.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in self.questions), encoding="utf-8")
        return path

    def items(self, file: Path, count: int = sys.maxsize, seed: int = 0) -> list[Item]:
        """Return the items of the questions; skip the test for a scorer without items."""
        scorer = self.make(path=str(file))
        if scorer.grades_load or scorer.asks_itself or (self.references and not self.questions):
            pytest.skip("this scorer has no items")
        assert self.questions, "set questions: rows of a question file"
        return list(scorer.items(file, count, seed))

    def graded_load(self) -> Sequence[Judged]:
        """Return the grades of a load with a right, a wrong, a failed and a warm-up answer for each reference."""
        assert self.references, "set references: references of requests that it can grade"
        requests, records = [], []
        for index, reference in enumerate(self.references):
            for kind in ("right", "wrong", "failed", "warmup"):
                request = request_of(f"{kind}-{index}", reference)
                requests.append(request)
                records.append(record_of(request, self.wrong, failed=kind == "failed", warmup=kind == "warmup"))
        drafts = self.make().grade_load(requests, records)
        right = {one.item.item_id: self.right(one.item) for one in drafts if one.item.item_id.startswith("right")}
        answered = [replace(one, text=right.get(one.request_id, one.text)) for one in records]
        return self.make().grade_load(requests, answered)

    def test_description(self) -> None:
        """Settings that extend the shared ones, and a description of its method."""
        assert issubclass(self.scorer.settings_type, QualitySettings)
        assert is_dataclass(self.scorer.settings_type)
        scorer = self.make()
        assert scorer.method.strip(), (
            "method describes how answers are graded; results of other methods are not comparable"
        )
        assert "\n" not in scorer.method
        assert not (scorer.grades_load and scorer.asks_itself)

    def test_config_composes(self) -> None:
        """`quality=NAME` selects its own settings: the plugin is installed and its config group is found."""
        assert_is_installed("quality", self.scorer, *attach_overrides(), "workload=unique")

    def test_check_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It returns one line per problem; a missing file is reported by `check` or by `items`."""
        monkeypatch.chdir(tmp_path)
        problems = self.make().check()
        assert all(problem.strip() and "\n" not in problem for problem in problems)
        assert list(tmp_path.iterdir()) == []
        scorer = self.make(path=str(tmp_path / "nowhere.jsonl"))
        if not scorer.grades_load and not scorer.check():
            with pytest.raises(ConfigError):
                scorer.items(tmp_path / "nowhere.jsonl", 1, 0)

    def test_items_are_complete(self, file: Path) -> None:
        """Unique ids, a prompt, a limit of the answer, and a JSON body."""
        items = self.items(file)
        assert len(items) > 3, "set at least four questions"
        assert len({item.item_id for item in items}) == len(items)
        assert len({item.digest for item in items}) == len(items)
        for item in items:
            assert item.prompt.strip() or item.messages
            assert item.max_tokens > 0
            json.dumps([dict(one) for one in item.messages] + [dict(item.body)])

    def test_items_depend_on_file_and_seed_only(self, file: Path) -> None:
        """They are the same in another process, fewer if fewer are requested, and others with another seed."""
        every = self.items(file)
        assert self.items(file) == every
        few = self.items(file, len(every) - 1)
        assert len(few) == len(every) - 1
        assert {item.item_id for item in few} < {item.item_id for item in every}
        drawn = {tuple(item.item_id for item in self.items(file, 2, seed)) for seed in range(SHOWN)}
        assert len(drawn) > 1, "another seed draws the same questions"
        digests = [item.digest for item in self.items(file, 3, 1)]
        settings = {**self.settings, "path": str(file)}
        others = run_in_another_process(_SCRIPT, self.scorer.__module__, self.scorer.__name__, settings, str(file))
        assert digests == json.loads(others)

    def test_broken_files_are_rejected(self, tmp_path: Path, file: Path) -> None:
        """With a ConfigError that names the file."""
        self.items(file)
        for text in self.broken:
            path = tmp_path / "broken.jsonl"
            path.write_text(text, encoding="utf-8")
            with pytest.raises(ConfigError) as error:
                self.make(path=str(path)).items(path, 4, 0)
            assert "broken.jsonl" in str(error.value), f"the error does not name the file: {error.value}"

    def test_right_and_wrong_answers(self, file: Path) -> None:
        """They differ in `correct`, else in the score."""
        for item in self.items(file)[:SHOWN]:
            scorer = self.make(path=str(file))
            good = scorer.grade(item, self.right_answer(item))
            bad = scorer.grade(item, ItemAnswer(item_id=item.item_id, text=self.wrong))
            _assert_differ(good, bad, item)

    def test_nonsense_is_graded(self, file: Path) -> None:
        """No answer raises an error; a grade can be stored and is always the same."""
        scorer = self.make(path=str(file))
        item = self.items(file)[0]
        for text in NONSENSE:
            answer = ItemAnswer(item_id=item.item_id, text=text, finish_reason="length")
            grade = scorer.grade(item, answer)
            assert grade.correct is not None or grade.score is not None, f"{text[:20]!r} is neither right nor wrong"
            _assert_storable(grade)
            assert scorer.grade(item, answer) == grade

    def test_load_answers_are_graded(self) -> None:
        """Right and wrong answers differ, failed requests have no grade, warm-up and other requests are ignored."""
        scorer = self.make()
        if not scorer.grades_load or (self.questions and not self.references):
            pytest.skip("this scorer does not grade the load")
        assert scorer.load_reference, "load_reference must name the required key of a request's reference"
        judged = {one.item.item_id: one for one in self.graded_load()}
        assert {item_id.partition("-")[0] for item_id in judged} == {"right", "wrong", "failed"}
        for index in range(len(self.references)):
            right, wrong = judged[f"right-{index}"], judged[f"wrong-{index}"]
            _assert_differ(right.grade, wrong.grade, right.item)
            failed = judged[f"failed-{index}"].grade
            assert failed.correct is failed.score is None, "a failed request has a grade"
        for one in judged.values():
            _assert_storable(one.grade)
        other = request_of("other", None)
        assert scorer.grade_load([other], [record_of(other, "x")]) == []

    def test_missing_endpoint_is_reported(self) -> None:
        """In every row, or as a QualityError."""
        scorer = self.make()
        if not scorer.asks_itself:
            pytest.skip("this scorer sends no requests of its own")
        with FakeServer(plain_server(MODEL)) as server:
            gone = Endpoint(base_url=server.base_url, model=MODEL)
        try:
            judged = scorer.evaluate(gone, count=2, concurrency=2)
        except QualityError:
            return
        assert all(one.answer.error and one.grade.correct is None for one in judged)

    def test_run(self, tmp_path: Path, file: Path) -> None:
        """`quality=NAME` with a server that knows the first answer: one row per question, and the first is right."""
        items = self.items(file)
        problems = self.make(path=str(file)).check()
        if problems:
            pytest.skip(problems[0])
        first = items[0]
        answers = {item.messages[-1]["content"] if item.messages else item.prompt: self.wrong for item in items}
        answers[first.messages[-1]["content"] if first.messages else first.prompt] = self.right(first)
        with FakeServer(plain_server(MODEL, answers=answers)) as server:
            words = [
                *attach_overrides(server.base_url, MODEL),
                *("workload=unique", "load.concurrency=[1]", "load.requests=1", "load.warmup_requests=0"),
                *("load.self_check=never", "tracking=none", "telemetry.enabled=false", "study.name=s"),
                *(f"quality={self.scorer.name}", f"quality.path={file}", "quality.concurrency=[2]"),
                *overrides("quality", self.settings),
            ]
            done = run_servebench(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        import pandas as pd

        (table,) = tmp_path.glob("outputs/s/*/quality.parquet")
        rows = pd.read_parquet(table).set_index("item_id")
        assert set(rows.index) == {item.item_id for item in items}
        assert set(rows["outcome"]) == {"ok"}
        assert rows.loc[first.item_id, "answer"] == self.right(first)
        best = rows["correct"] if rows["correct"].notna().all() else rows["score"]
        assert float(best[first.item_id]) > float(best.drop(first.item_id).astype(float).max())
        assert f"quality: {self.scorer.name}" in done.stdout


def request_of(request_id: str, reference: Any) -> Request:
    """Return a request of a load with a reference."""
    return Request(request_id=request_id, messages=(Message("user", "Say it."),), output_tokens=64, reference=reference)


def record_of(request: Request, text: str, *, failed: bool = False, warmup: bool = False) -> Record:
    """Return the record of a request that was answered with a text, or failed."""
    outcome: dict[str, Any] = {"outcome": "ok", "http_status": 200, "error": None, "finish_reason": "stop"}
    if failed:
        outcome = {"outcome": "http_error", "http_status": 503, "error": "busy"}
    return Record(
        run_id="conformance",
        point="c1-r0",
        request_id=request.request_id,
        warmup=warmup,
        scheduled_ns=0,
        sent_ns=0,
        first_event_ns=1,
        first_output_ns=1,
        last_event_ns=1_000_000,
        ended_ns=1_000_000,
        event_ns=[1, 1_000_000],
        prompt_tokens=5,
        planned_prompt_tokens=5,
        output_tokens=2,
        asked_output_tokens=request.output_tokens,
        counted_by="usage",
        stamp_source="kernel",
        text="" if failed else text,
        **outcome,
    )


def _assert_differ(good: Grade, bad: Grade, item: Item) -> None:
    if good.correct is None:
        assert good.score is not None, f"{item.item_id}: a right answer has neither `correct` nor a score"
        assert good.score > (bad.score or 0.0), f"{item.item_id}: the right answer scores no more than the wrong one"
        return
    assert good.correct is True, f"{item.item_id}: the right answer is graded as wrong"
    assert bad.correct is False, f"{item.item_id}: the wrong answer is graded as {bad.correct}"


def _assert_storable(grade: Grade) -> None:
    assert grade.extracted is None or isinstance(grade.extracted, str)
    assert grade.score is None or 0.0 <= grade.score <= 1.0
    assert grade.note is None or "\n" not in grade.note
    for text in (grade.extracted, grade.note):
        (text or "").encode()
    json.dumps(grade.detail, allow_nan=False)


_SCRIPT = """
import importlib, json, sys
from pathlib import Path
module, name, settings, path = json.loads(sys.argv[1])
kind = getattr(importlib.import_module(module), name)
scorer = kind(kind.settings_type(name=kind.name, **settings))
print(json.dumps([item.digest for item in scorer.items(Path(path), 3, 1)]))
"""
