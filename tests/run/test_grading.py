"""Which scorers a run uses, which questions are asked after a restart, and scorers of plugins."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pluggy
import pytest

from servebench.config import compose_jobs
from servebench.contracts.events import Graded
from servebench.contracts.quality import Grade, Item, ItemAnswer, Scorer
from servebench.contracts.settings import QualitySettings
from servebench.registry.registry import Registry, build, registry
from servebench.run import grading
from servebench.run.grading import configured_scorers, select_scorers, unasked_questions
from servebench.store.graded import AnswerLog, add_quality, discard_answers, discard_graded_answers, read_quality
from servebench.store.layout import RunFolder
from servebench.util.errors import ConfigError, QualityError
from support.fake_engine import FakeEngine, FakeRunning
from support.orchestration import Recorder
from support.records import quality_records


@dataclass(frozen=True, kw_only=True)
class EchoSettings(QualitySettings):
    shout: bool = False


class Echo(Scorer):
    """A plugin's scorer: its questions are its own answers."""

    name = "echo"
    method = "the same text"
    settings_type = EchoSettings

    def items(self, path: Path, count: int, seed: int) -> Sequence[Item]:
        words = path.read_text().split()[:count]
        return [Item(item_id=word, prompt=word, expected=word, max_tokens=4) for word in words]

    def grade(self, item: Item, answer: ItemAnswer) -> Grade:
        return Grade(correct=answer.text == item.expected, extracted=answer.text)


class Never(Scorer):
    name = "never"
    method = "none"

    def check(self) -> list[str]:
        return ["it lacks a thing"]


@pytest.fixture
def known(tmp_path) -> Registry:
    """The built-ins, and a plugin with two scorers and their config folder."""
    folder = tmp_path / "conf" / "quality"
    folder.mkdir(parents=True)
    for name, more in (("echo", "shout: false\n"), ("never", "")):
        (folder / f"{name}.yaml").write_text(f"# of a plugin\ndefaults:\n  - base\n  - _self_\n\nname: {name}\n{more}")
    found = registry()
    kinds = {**found.kinds, "quality": {"echo": Echo, "never": Never}}
    return Registry(pluggy.PluginManager("servebench"), (), kinds, (str(tmp_path / "conf"),))


ATTACHED = ("engine=openai", "launch=attach", "launch.base_url=http://h/v1", "model.name=m", "workload=unique")


def job(known, *words):
    (only,) = compose_jobs([*ATTACHED, *words], known)
    return only.settings


def request_of(settings, scorers, folder):
    return SimpleNamespace(
        settings=settings,
        run_id="s/00",
        folder=folder,
        quality=scorers,
        events=Recorder(),
    )


@pytest.mark.slow
def test_a_plugins_scorer_has_its_config_and_its_keys(known):
    settings = job(known, "quality=echo", "quality.shout=true", "quality.items=3", "quality.concurrency=2")
    assert settings.quality == EchoSettings(name="echo", shout=True, items=3, concurrency=(2,))
    (scorer,) = configured_scorers(settings.quality, known)
    assert isinstance(scorer, Echo)
    assert scorer.settings is settings.quality
    with pytest.raises(ConfigError, match=r"quality\.shuot: unknown key; did you mean 'quality\.shout'"):
        job(known, "quality=echo", "quality.shuot=true")
    with pytest.raises(ConfigError, match="quality=ecko: no such quality; did you mean 'echo'"):
        job(known, "quality=ecko")


@pytest.mark.slow
def test_all_means_every_scorer_or_those_in_tasks(known, tmp_path):
    """Each gets the shared keys; one that cannot run is left out of all, and an error where it was named."""
    scorers = configured_scorers(job(known, "quality=all", "quality.items=7").quality, known)
    assert [(one.name, one.settings.items) for one in scorers] == [("echo", 7), ("never", 7)]
    assert configured_scorers(job(known).quality, known) == []
    with pytest.raises(ConfigError, match="quality=nope: no such quality"):
        select_scorers(job(known, "quality=all", "quality.tasks=[nope]"), known, tmp_path)
    with pytest.raises(ConfigError, match="never: it lacks a thing") as error:
        select_scorers(job(known, "quality=all"), known, tmp_path)
    assert "quality.path" in str(error.value)
    with pytest.raises(ConfigError, match="quality=never: it lacks a thing"):
        select_scorers(job(known, "quality=never"), known, tmp_path)


def test_the_users_file_is_read_before_anything_starts(known, tmp_path):
    path = tmp_path / "words"
    path.write_text("one two")
    chosen = select_scorers(job(known, "quality=echo", f"quality.path={path}"), known, tmp_path)
    assert [(scorer.name, where) for scorer, where in chosen.scorers] == [("echo", path)]
    built_in = registry()
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl"):
        select_scorers(job(built_in, "quality=mmlu", "quality.path=nowhere.jsonl"), built_in, tmp_path)
    path.write_text('{"question": "1 + 1?", "answer": 2}\n' * 9 + '{"question": "1 + 2?"}\n')
    with pytest.raises(ConfigError, match="row 9 of"):
        select_scorers(job(built_in, "quality=gsm8k", f"quality.path={path}"), built_in, tmp_path)


def test_answered_questions_are_not_asked_again(known, tmp_path):
    path = tmp_path / "words"
    path.write_text("one")
    settings = job(known, "quality=echo", f"quality.path={path}", "quality.concurrency=[1,4]")
    chosen = select_scorers(settings, known, tmp_path)
    folder = RunFolder(tmp_path)
    left = lambda: [level for *_, level in unasked_questions(request_of(settings, chosen, folder))]  # noqa: E731
    assert left() == [1, 4]
    add_quality(folder, quality_records("echo", [True], concurrency=1))
    add_quality(folder, quality_records("echo", [True], concurrency=4, point="c4-r0"))
    assert left() == [4]
    add_quality(folder, quality_records("echo", [None], concurrency=4, error="key sk-abcdefghijklmnopqrstuvwxyz"))
    assert left() == []
    assert len(read_quality(folder)) == 3


def test_the_log_of_graded_answers_does_not_outlive_a_kill(tmp_path):
    """A kill between the grades and the removal of their log: only the log of what is not graded is kept."""
    folder = RunFolder(tmp_path)
    for level in (1, 4):
        with AnswerLog(folder, "echo", level):
            pass
    discard_graded_answers(folder)
    assert len(list(folder.raw.iterdir())) == 2
    add_quality(folder, quality_records("echo", [True], concurrency=1))
    add_quality(folder, quality_records("echo", [True], concurrency=4, point="c4-r0"))
    discard_graded_answers(folder)
    assert [path.name for path in folder.raw.iterdir()] == ["answers-echo-c4.jsonl"]


def test_only_successful_answers_survive_a_kill(tmp_path):
    folder = RunFolder(tmp_path)
    with AnswerLog(folder, "echo", 2) as log:
        assert log.known == {}
        log.add("a", ItemAnswer(item_id="a", text="yes", latency_ms=3.5))
        log.add("b", ItemAnswer(item_id="b", text="", error="timed out", outcome="timeout"))
    (file,) = tmp_path.glob("raw/*")
    with file.open("ab") as cut:
        cut.write(b'{"digest":"c","answ')
    with AnswerLog(folder, "echo", 2) as log:
        assert log.known == {"a": ItemAnswer(item_id="a", text="yes", latency_ms=3.5)}
        log.add("d", ItemAnswer(item_id="d", text="no"))
    with AnswerLog(folder, "echo", 2) as log:
        assert set(log.known) == {"a", "d"}
    discard_answers(folder, "echo", 2)
    assert not file.exists()


@pytest.mark.parametrize("change", [{"prompt": "q"}, {"expected": "e"}, {"max_tokens": 9}, {"body": {"stop": ["x"]}}])
def test_the_digest_covers_the_whole_question(change):
    plain = {"item_id": "i", "prompt": "p", "expected": "x", "max_tokens": 8}
    assert Item(**plain).digest == Item(**plain).digest
    assert Item(**{**plain, **change}).digest != Item(**plain).digest


def test_every_scorer_of_servebench_has_a_config():
    folder = Path(__file__).parents[2] / "conf" / "quality"
    assert {path.stem for path in folder.glob("*.yaml")} - {"base", "none", "all"} == set(
        build([], set()).kinds["quality"]
    )


@pytest.mark.parametrize(
    "words", [("quality=judge", "quality.judge.model=m"), ("quality=all", "quality.tasks=[judge]")]
)
def test_a_scorer_of_a_plugin_that_is_not_installed_says_how_to_get_it(words, tmp_path):
    without = build([], set())
    with pytest.raises(ConfigError) as error:
        select_scorers(job(without, *words), without, tmp_path)
    (line,) = error.value.faults
    assert line.startswith("quality=judge is not installed: pip install")
    assert "servebench-graders" in line


FAILED = {"error": "HTTP 400: no tools", "outcome": "http_error"}


class Engine(FakeEngine):
    reset_path = "/reset"


@pytest.fixture
def quality_job(known, tmp_path, monkeypatch):
    """`quality_job(reason, *words)`: questions at concurrency 1 and 4 of an engine whose reset fails for this reason, and which
    answers nothing at the concurrencies in `fails`."""
    path = tmp_path / "words"
    path.write_text("one two")
    resets = []

    def build(reason, *words, engine=Engine, quality="quality=echo", fails=()):
        monkeypatch.setattr("servebench.engine.supervisor.endpoint.reset_cache", lambda *_: resets.append(1) or reason)
        monkeypatch.setattr(
            "servebench.quality.ask.ask",
            lambda items, *_, concurrency, **__: [
                ItemAnswer(
                    item_id=i.item_id, text=i.expected, latency_ms=1.0, **(FAILED if concurrency in fails else {})
                )
                for i in items
            ],
        )
        monkeypatch.setattr(Echo, "source", path)
        settings = job(known, quality, "quality.concurrency=[1,4]", *words)
        folder = RunFolder(tmp_path / "run")
        folder.path.mkdir()
        request = request_of(settings, select_scorers(settings, known, tmp_path), folder)
        launcher = SimpleNamespace(emulated=False)
        return request, SimpleNamespace(engine=engine(), running=FakeRunning(), launcher=launcher)

    build.resets = resets
    return build


def warnings_of(quality_job):
    request, lease = quality_job
    grading.grade_questions(request, lease)
    found = {}
    for summary in grading.stored_summaries(request.folder):
        found[summary.concurrency] = [doubt for doubt in summary.doubts if doubt.code == "cache_not_reset"]
    assert [one.summary.doubts for one in request.events.of(Graded)] == [
        one.doubts for one in grading.stored_summaries(request.folder)
    ], "what is shown is what is stored"
    return found


def test_the_cache_is_emptied_before_each_concurrency(quality_job):
    assert warnings_of(quality_job(None)) == {1: [], 4: []}
    assert len(quality_job.resets) == 2


def test_a_cache_that_is_not_emptied_is_a_stored_warning(quality_job):
    """At the second concurrency: the same questions were asked before. It leaves the verdict alone."""
    warnings = warnings_of(quality_job("/reset returned 404"))
    assert warnings[1] == []
    (warning,) = warnings[4]
    assert "/reset returned 404" in warning.message
    assert warning.mark


def test_an_engine_that_cannot_empty_its_cache_is_a_warning_too(quality_job):
    warnings = warnings_of(quality_job("no way to do it", engine=type("NoReset", (Engine,), {"reset_path": None})))
    assert [len(found) for found in warnings.values()] == [0, 1]


def test_without_a_prefix_cache_there_is_nothing_to_warn_of(quality_job):
    assert warnings_of(quality_job("404", "engine.prefix_caching=false")) == {1: [], 4: []}


@pytest.mark.parametrize(
    ("words", "fails"), [(("quality=echo",), {1}), (("quality=all", "quality.tasks=[echo]"), {1, 4})]
)
def test_no_answer_at_all_is_an_error(quality_job, words, fails):
    request, lease = quality_job(None, *words[1:], quality=words[0], fails=fails)
    with pytest.raises(QualityError):
        grading.grade_questions(request, lease)


def test_of_all_scorers_one_without_answers_does_not_stop_the_others(quality_job):
    request, lease = quality_job(None, "quality.tasks=[echo]", quality="quality=all", fails={1})
    grading.grade_questions(request, lease)
    failed, answered = grading.stored_summaries(request.folder)
    assert (failed.n, answered.n) == (0, 2)
    assert any(doubt.code == "unanswered" and doubt.void for doubt in failed.doubts)


def test_a_key_that_a_server_repeats_is_not_stored(tmp_path, monkeypatch):
    key = "planted-0123456789"
    monkeypatch.setenv("MY_API_KEY", key)
    folder = RunFolder(tmp_path)
    with AnswerLog(folder, "echo", 2) as log:
        log.add(
            "a", ItemAnswer(item_id="a", text=f"you said {key}", reasoning=key, calls=[{"name": key, "arguments": key}])
        )
    (file,) = tmp_path.glob("raw/*")
    assert key not in file.read_text()
    (record,) = quality_records("echo", [True], concurrency=1)
    add_quality(folder, [replace(record, answer=f"you said {key}", extracted=key, error=f"wrong key {key}")])
    assert key not in read_quality(folder).to_json()
