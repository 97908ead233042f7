"""Which scorers are used, what is asked again after a stop, and scorers of plugins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pluggy
import pytest

from servebench.config import compose_jobs
from servebench.contracts.quality import Answer, Grade, Item, Scorer
from servebench.contracts.settings import QualitySettings
from servebench.registry.registry import Registry, registry
from servebench.run.grading import missing
from servebench.run.scorers import asked_scorers, choose
from servebench.store import AnswerLog, RunFolder, add_quality, discard_answers, read_quality
from servebench.util.errors import ConfigError


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

    def grade(self, item: Item, answer: Answer) -> Grade:
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


def test_a_plugins_scorer_has_its_config_and_its_keys(known):
    settings = job(known, "quality=echo", "quality.shout=true", "quality.items=3", "quality.concurrency=2")
    assert settings.quality == EchoSettings(name="echo", shout=True, items=3, concurrency=(2,))
    (scorer,) = asked_scorers(settings.quality, known)
    assert isinstance(scorer, Echo)
    assert scorer.settings is settings.quality
    with pytest.raises(ConfigError, match=r"quality\.shuot: unknown key; did you mean 'quality\.shout'"):
        job(known, "quality=echo", "quality.shuot=true")
    with pytest.raises(ConfigError, match="quality=ecko: no such quality; did you mean 'echo'"):
        job(known, "quality=ecko")


def test_all_is_every_scorer_or_those_that_are_named(known, tmp_path):
    """Each gets the shared keys; one that cannot run is left out of all, and an error where it was named."""
    scorers = asked_scorers(job(known, "quality=all", "quality.items=7").quality, known)
    assert [(one.name, one.settings.items) for one in scorers] == [("echo", 7), ("never", 7)]
    assert asked_scorers(job(known).quality, known) == []
    with pytest.raises(ConfigError, match="no quality named 'nope'"):
        choose(job(known, "quality=all", "quality.tasks=[nope]"), known, tmp_path)
    with pytest.raises(ConfigError, match="never: it lacks a thing") as told:
        choose(job(known, "quality=all"), known, tmp_path)
    assert "echo: it brings no questions: name a file with quality.path=" in str(told.value)
    with pytest.raises(ConfigError, match="quality=never: it lacks a thing"):
        choose(job(known, "quality=never"), known, tmp_path)


def test_the_file_of_the_user_is_read_before_anything_starts(known, tmp_path):
    path = tmp_path / "words"
    path.write_text("one two")
    chosen = choose(job(known, "quality=echo", f"quality.path={path}"), known, tmp_path)
    assert [(scorer.name, where) for scorer, where in chosen.scorers] == [("echo", path)]
    built_in = registry()
    with pytest.raises(ConfigError, match="questions cannot be read from"):
        choose(job(built_in, "quality=mmlu", "quality.path=nowhere.jsonl"), built_in, tmp_path)


def test_what_was_asked_is_not_asked_again(known, tmp_path, graded):
    path = tmp_path / "words"
    path.write_text("one")
    settings = job(known, "quality=echo", f"quality.path={path}", "quality.concurrency=[1,4]")
    chosen = choose(settings, known, tmp_path)
    folder = RunFolder(tmp_path)
    left = lambda: [level for _, _, level in missing(settings.quality, chosen, folder)]  # noqa: E731
    assert left() == [1, 4]
    add_quality(folder, graded("echo", [True], concurrency=1))
    add_quality(folder, graded("echo", [True], concurrency=4, point="c4-r0"))
    assert left() == [4]
    add_quality(folder, graded("echo", [None], concurrency=4, error="key sk-abcdefghijklmnopqrstuvwxyz"))
    assert left() == []
    assert len(read_quality(folder)) == 3


def test_answers_survive_a_kill_but_for_those_that_failed(tmp_path):
    folder = RunFolder(tmp_path)
    with AnswerLog(folder, "echo", 2) as log:
        assert log.known == {}
        log.add("a", Answer(item_id="a", text="yes", latency_ms=3.5))
        log.add("b", Answer(item_id="b", text="", error="timed out", outcome="timeout"))
    (file,) = tmp_path.glob("raw/*")
    with file.open("ab") as cut:
        cut.write(b'{"digest":"c","answ')
    with AnswerLog(folder, "echo", 2) as log:
        assert log.known == {"a": Answer(item_id="a", text="yes", latency_ms=3.5)}
        log.add("d", Answer(item_id="d", text="no"))
    with AnswerLog(folder, "echo", 2) as log:
        assert set(log.known) == {"a", "d"}
    discard_answers(folder, "echo", 2)
    assert not file.exists()


@pytest.mark.parametrize("change", [{"prompt": "q"}, {"expected": "e"}, {"max_tokens": 9}, {"body": {"stop": ["x"]}}])
def test_a_question_is_another_when_anything_of_it_differs(change):
    plain = {"item_id": "i", "prompt": "p", "expected": "x", "max_tokens": 8}
    assert Item(**plain).digest == Item(**plain).digest
    assert Item(**{**plain, **change}).digest != Item(**plain).digest


def test_every_scorer_of_servebench_has_a_config():
    folder = Path(__file__).parents[2] / "conf" / "quality"
    assert {path.stem for path in folder.glob("*.yaml")} - {"base", "none", "all"} == set(registry().kinds["quality"])
