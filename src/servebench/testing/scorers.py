"""What every scorer plugin must keep, as tests to inherit.

    class TestMine(ScorerConformance):
        scorer = MyScorer
        questions = ({"prompt": "2 + 2 =", "answer": "4"}, {"prompt": "3 + 4 =", "answer": "7"}, ...)

        def right(self, item):
            return item.expected

The last test runs the scorer through the command, against a server in this process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
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
from servebench.registry.registry import registry
from servebench.testing.command import overrides, run_servebench
from servebench.testing.server import FakeServer, ServerBehavior
from servebench.util.errors import ConfigError, QualityError

NAME = r"[a-z0-9_-]+"
MODEL = "model"
SHOWN = 12
NONSENSE = (
    "",
    " \n\t ",
    "\x00",
    "?" * 100_000,
    "9" * 5_000,
    "{" * 5_000,
    '{"score": NaN}',
    "```",
    "#### ",
    "\u202e\U0001f600 …",
)
"""What models also say."""


class ScorerConformance:
    """Inherit, name the scorer, and say what the suite cannot know.

    Attributes:
        scorer: the class under test.
        settings: quality settings that it is tested with, beside those that the suite sets.
        questions: rows of a file of questions; four or more, so that samples differ. None for a scorer that judges the load.
        broken: texts of question files that must be refused with a ConfigError.
        references: for a scorer that judges the load: references of requests that it can judge.
        wrong: an answer that gets no question right.
    """

    scorer: ClassVar[type[Scorer]]
    settings: ClassVar[Mapping[str, Any]] = {}
    questions: ClassVar[Sequence[Mapping[str, Any]]] = ()
    broken: ClassVar[Sequence[str]] = ("", "not JSON\n", '{"unknown": 1}\n')
    references: ClassVar[Sequence[Any]] = ()
    wrong: ClassVar[str] = "I would rather not say."

    def right(self, item: Item) -> str:
        """An answer that gets a question right."""
        raise NotImplementedError("say which answer is right: def right(self, item)")

    # what tests are made of

    def made(self, **settings: Any) -> Scorer:
        """The scorer with its settings."""
        told = {"name": self.scorer.name, **self.settings, **settings}
        return self.scorer(self.scorer.settings_type(**told))

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        """The questions as a file."""
        path = tmp_path / "questions.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in self.questions), encoding="utf-8")
        return path

    def asked(self, file: Path, count: int = sys.maxsize, seed: int = 0) -> list[Item]:
        """The items of the questions; skips for a scorer that makes none."""
        scorer = self.made(path=str(file))
        if scorer.grades_load or scorer.asks_itself or (self.references and not self.questions):
            pytest.skip("it makes no items that servebench asks")
        assert self.questions, "give questions, rows of a file that it takes"
        return list(scorer.items(file, count, seed))

    def judged_load(self) -> Sequence[Judged]:
        """What it says of a load whose answers are right, then wrong, then failed, and one of a warm-up."""
        assert self.references, "give references of requests that it can judge"
        requests, records = [], []
        for place, reference in enumerate(self.references):
            for kind in ("right", "wrong", "failed", "warmup"):
                request = request_of(f"{kind}-{place}", reference)
                requests.append(request)
                records.append(record_of(request, self.wrong, failed=kind == "failed", warmup=kind == "warmup"))
        drafts = self.made().grade_load(requests, records)
        right = {one.item.item_id: self.right(one.item) for one in drafts if one.item.item_id.startswith("right")}
        told = [replace_text(one, right[one.request_id]) if one.request_id in right else one for one in records]
        return self.made().grade_load(requests, told)

    # what it says of itself

    def test_it_is_described(self) -> None:
        """A name for configs, settings that only add to the shared ones, and in words how it judges."""
        assert re.fullmatch(NAME, self.scorer.name), (
            "lower-case letters, digits, _ and -: it is an option of the config"
        )
        assert issubclass(self.scorer.settings_type, QualitySettings)
        assert is_dataclass(self.scorer.settings_type)
        scorer = self.made()
        assert scorer.method.strip(), "method says how an answer is judged: other methods are not compared with it"
        assert "\n" not in scorer.method
        assert not (scorer.grades_load and scorer.asks_itself)

    def test_its_config_composes(self) -> None:
        """`quality=NAME` gives its own settings: its plugin is installed and its config group is found."""
        from servebench.config import compose_jobs

        somewhere = ["engine=openai", "launch=attach", "launch.base_url=http://127.0.0.1:8000/v1", "model.name=m"]
        (job,) = compose_jobs([*somewhere, "workload=unique", f"quality={self.scorer.name}"], registry())
        assert type(job.settings.quality) is self.scorer.settings_type
        assert registry().find("quality", self.scorer.name) is self.scorer

    def test_a_check_tells_in_lines_and_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each a line that says what to do; a file that is not there is one of them, or told by `items`."""
        monkeypatch.chdir(tmp_path)
        faults = self.made().check()
        assert all(fault.strip() and "\n" not in fault for fault in faults)
        assert list(tmp_path.iterdir()) == []
        scorer = self.made(path=str(tmp_path / "nowhere.jsonl"))
        if not scorer.grades_load and not scorer.check():
            with pytest.raises(ConfigError):
                scorer.items(tmp_path / "nowhere.jsonl", 1, 0)

    # questions

    def test_items_are_whole(self, file: Path) -> None:
        """Ids that differ, a prompt, a bound of the answer, and no secret in what is asked: the expected answer apart."""
        items = self.asked(file)
        assert len(items) > 3, "give four questions or more"
        assert len({item.item_id for item in items}) == len(items)
        assert len({item.digest for item in items}) == len(items)
        for item in items:
            assert item.prompt.strip() or item.messages
            assert item.max_tokens > 0
            json.dumps([dict(one) for one in item.messages] + [dict(item.body)])

    def test_items_follow_from_file_and_seed(self, file: Path) -> None:
        """The same ones again, fewer when fewer are asked for, others with another seed; in another process too."""
        every = self.asked(file)
        assert self.asked(file) == every
        few = self.asked(file, len(every) - 1)
        assert len(few) == len(every) - 1
        assert {item.item_id for item in few} < {item.item_id for item in every}
        drawn = {tuple(item.item_id for item in self.asked(file, 2, seed)) for seed in range(SHOWN)}
        assert len(drawn) > 1, "another seed draws the same questions"
        digests = [item.digest for item in self.asked(file, 3, 1)]
        assert digests == _in_another_process(self.scorer, {**self.settings, "path": str(file)}, file)

    def test_a_file_that_is_none_is_refused(self, tmp_path: Path, file: Path) -> None:
        """In a line that names it, never with another error."""
        self.asked(file)
        for text in self.broken:
            path = tmp_path / "broken.jsonl"
            path.write_text(text, encoding="utf-8")
            with pytest.raises(ConfigError) as error:
                self.made(path=str(path)).items(path, 4, 0)
            assert "broken.jsonl" in str(error.value), f"it does not name the file: {error.value}"

    # grades

    def test_right_is_right_and_wrong_is_wrong(self, file: Path) -> None:
        """By `correct`, else by the score."""
        for item in self.asked(file)[:SHOWN]:
            scorer = self.made(path=str(file))
            good = scorer.grade(item, ItemAnswer(item_id=item.item_id, text=self.right(item)))
            bad = scorer.grade(item, ItemAnswer(item_id=item.item_id, text=self.wrong))
            _differ(good, bad, item)

    def test_a_failed_request_is_neither_right_nor_wrong(self, file: Path) -> None:
        """Such an answer has no text."""
        for item in self.asked(file)[:SHOWN]:
            failed = ItemAnswer(item_id=item.item_id, text="", error="HTTP 503", outcome="http_error")
            _neither(self.made(path=str(file)).grade(item, failed))

    def test_nonsense_is_judged_too(self, file: Path) -> None:
        """No answer raises; a grade is data that can be stored, and the same each time."""
        scorer = self.made(path=str(file))
        item = self.asked(file)[0]
        for text in NONSENSE:
            answer = ItemAnswer(item_id=item.item_id, text=text, finish_reason="length")
            grade = scorer.grade(item, answer)
            assert grade.correct is not None or grade.score is not None, f"{text[:20]!r} is neither right nor wrong"
            _storable(grade)
            assert scorer.grade(item, answer) == grade

    # the load's own answers

    def test_the_loads_answers_are_judged(self) -> None:
        """Right and wrong are told apart, a failed request is neither, a warm-up is none, other requests are passed over."""
        scorer = self.made()
        if not scorer.grades_load or (self.questions and not self.references):
            pytest.skip("it does not judge the load's answers")
        assert scorer.load_reference, "load_reference names the key of a request's reference that it needs"
        judged = {one.item.item_id: one for one in self.judged_load()}
        assert {item_id.partition("-")[0] for item_id in judged} == {"right", "wrong", "failed"}
        for place in range(len(self.references)):
            _differ(judged[f"right-{place}"].grade, judged[f"wrong-{place}"].grade, judged[f"right-{place}"].item)
            _neither(judged[f"failed-{place}"].grade)
        for one in judged.values():
            _storable(one.grade)
        other = request_of("other", None)
        assert scorer.grade_load([other], [record_of(other, "x")]) == []

    # its own asking

    def test_an_endpoint_that_is_gone_is_told(self) -> None:
        """In every row, or as a QualityError; never as another error."""
        scorer = self.made()
        if not scorer.asks_itself:
            pytest.skip("it does not ask by itself")
        with FakeServer() as server:
            gone = Endpoint(base_url=server.base_url, model=MODEL)
        try:
            judged = scorer.evaluate(gone, count=2, concurrency=2)
        except QualityError:
            return
        assert all(one.answer.error and one.grade.correct is None for one in judged)

    # the whole

    def test_the_command_asks_and_stores(self, tmp_path: Path, file: Path) -> None:
        """`quality=NAME` on a server that knows the first answer: a row for each question, and the first is right."""
        items = self.asked(file)
        faults = self.made(path=str(file)).check()
        if faults:
            pytest.skip(faults[0])
        first = items[0]
        prompt = first.messages[-1]["content"] if first.messages else first.prompt
        answers = {prompt: self.right(first)}
        answers |= {
            one.messages[-1]["content"] if one.messages else one.prompt: self.wrong
            for one in items[1:]
            if one.prompt != first.prompt
        }
        with FakeServer(ServerBehavior(models=(MODEL,), answers=answers)) as server:
            words = [
                *("engine=openai", "launch=attach", f"launch.base_url={server.base_url}", f"model.name={MODEL}"),
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
    """A request of a load with a reference."""
    return Request(request_id=request_id, messages=(Message("user", "Say it."),), output_tokens=64, reference=reference)


def record_of(request: Request, text: str, *, failed: bool = False, warmup: bool = False) -> Record:
    """The record of a request that was answered with a text, or failed."""
    seen: dict[str, Any] = {"outcome": "ok", "http_status": 200, "error": None, "text": text, "finish_reason": "stop"}
    if failed:
        seen = {"outcome": "http_error", "http_status": 503, "error": "busy", "text": "", "finish_reason": None}
    return Record(
        run_id="conformance",
        point="c1-r0",
        request_id=request.request_id,
        session_id=None,
        warmup=warmup,
        scheduled_ns=0,
        connect_started_ns=None,
        connected_ns=None,
        sent_ns=0,
        first_event_ns=1,
        first_output_ns=1,
        last_event_ns=1_000_000,
        ended_ns=1_000_000,
        event_ns=[1, 1_000_000],
        event_tokens=None,
        reads_merged=0,
        prompt_tokens=5,
        planned_prompt_tokens=5,
        cached_tokens=None,
        reasoning_tokens=None,
        output_tokens=2,
        asked_output_tokens=request.output_tokens,
        counted_by="usage",
        stamp_source="kernel",
        **seen,
    )


def replace_text(record: Record, text: str) -> Record:
    """The record with another answer."""
    return replace(record, text=text)


def _differ(good: Grade, bad: Grade, item: Item) -> None:
    if good.correct is None:
        assert good.score is not None, f"{item.item_id}: a right answer has neither `correct` nor a score"
        assert good.score > (bad.score or 0.0), f"{item.item_id}: the right answer scores no more than the wrong one"
        return
    assert good.correct is True, f"{item.item_id}: the right answer is taken for wrong"
    assert bad.correct is False, f"{item.item_id}: the wrong answer is taken for {bad.correct}"


def _neither(grade: Grade) -> None:
    assert grade.correct is None, "a failed request is judged"
    assert grade.score is None, "a failed request has a score"


def _storable(grade: Grade) -> None:
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


def _in_another_process(kind: type[Scorer], settings: Mapping[str, Any], file: Path) -> list[str]:
    """The digests of three items, where texts have other hashes."""
    asked = json.dumps([kind.__module__, kind.__name__, dict(settings), str(file)])
    env = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, asked], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found
