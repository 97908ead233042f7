"""What every workload plugin must keep, as tests to inherit.

    class TestMine(WorkloadConformance):
        workload = MyWorkload

The last two tests run the workload through the command: shown without an engine, and sent to a server in this process.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.registry.registry import registry
from servebench.testing.command import overrides, run_servebench
from servebench.testing.server import FakeServer, ServerBehavior

NAME = r"[a-z0-9_-]+"
MODEL = "model"
COUNT = 8
STREAM, OTHER_STREAM = "point-1-0", "point-2-0"


class WordTokenizer:
    """Counts words and signs, each with the blank before it; it is exact, so that lengths must be too."""

    name = "words"
    exact = True

    def count(self, texts: Sequence[str]) -> list[int]:
        """Words and signs of each text."""
        return [len(self._ends(text)) for text in texts]

    def truncate(self, text: str, tokens: int) -> str:
        """The first of them."""
        ends = self._ends(text)
        return text if len(ends) <= tokens else text[: ends[tokens - 1]] if tokens else ""

    @staticmethod
    def _ends(text: str) -> list[int]:
        return [found.end() for found in re.finditer(r"\s*(?:\w+|[^\w\s])", text)]


class WorkloadConformance:
    """Inherit, name the workload, and say what the suite cannot know.

    Attributes:
        workload: the class under test.
        settings: workload settings that it is tested with: small ones.
        exact_input: whether prompts are as long as `input_tokens` asks, by an exact tokenizer.
        fresh_streams: whether another stream (warm-up, the next point) has other prompts; one that repeats a fixed data set
            has not.
        seeded: whether another seed gives other requests.
        bounds_output: whether `output_tokens` bounds every answer; one that takes lengths from its data has not.
    """

    workload: ClassVar[type[Workload]]
    settings: ClassVar[Mapping[str, Any]] = {}
    exact_input: ClassVar[bool] = False
    fresh_streams: ClassVar[bool] = True
    seeded: ClassVar[bool] = True
    bounds_output: ClassVar[bool] = True

    # what tests are made of

    def tokenizer(self) -> Tokenizer:
        """What counts in these tests."""
        return WordTokenizer()

    def made(self, **settings: Any) -> Workload:
        """The workload with its settings."""
        told = {"name": self.workload.name, **self.settings, **settings}
        return self.workload(self.workload.settings_type(**told))

    def requests(self, count: int = COUNT, stream: str = STREAM, **settings: Any) -> Sequence[Request]:
        """Requests of it."""
        return self.made(**settings).requests(count, stream=stream, tokenizer=self.tokenizer())

    # what it says of itself

    def test_it_is_described(self) -> None:
        """A name for configs, settings that only add to the shared ones."""
        assert re.fullmatch(NAME, self.workload.name), (
            "lower-case letters, digits, _ and -: it is an option of the config"
        )
        assert issubclass(self.workload.settings_type, WorkloadSettings)
        assert is_dataclass(self.workload.settings_type)

    def test_its_config_composes(self) -> None:
        """`workload=NAME` gives its own settings: its plugin is installed and its config group is found."""
        from servebench.config import compose_jobs

        somewhere = ["engine=openai", "launch=attach", "launch.base_url=http://127.0.0.1:8000/v1", "model.name=m"]
        (job,) = compose_jobs([*somewhere, f"workload={self.workload.name}"], registry())
        assert type(job.settings.workload) is self.workload.settings_type
        assert registry().find("workload", self.workload.name) is self.workload

    def test_a_check_tells_in_lines_and_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With these settings there is nothing to tell."""
        monkeypatch.chdir(tmp_path)
        assert self.made().check() == []
        assert list(tmp_path.iterdir()) == []

    # requests

    def test_requests_are_whole(self) -> None:
        """As many as asked, ids that differ, chat or completion and not both, an answer bounded, a body that is JSON."""
        requests = self.requests()
        assert len(requests) == COUNT
        assert len({one.request_id for one in requests}) == COUNT
        for one in requests:
            assert (one.messages is None) != (one.prompt is None), f"{one.request_id}: either messages or a prompt"
            assert _text(one).strip()
            assert one.output_tokens > 0
            assert one.temperature >= 0
            json.dumps([one.schema, dict(one.extra)])
        assert len(self.requests(1)) == 1

    def test_requests_follow_from_settings_seed_and_stream(self) -> None:
        """The same ones again, in another process too; others with another seed and in another stream."""
        digest = _digest(self.requests())
        assert _digest(self.requests()) == digest
        assert _in_another_process(self.workload, self.settings, type(self.tokenizer())) == digest
        if self.seeded:
            assert _digest(self.requests(seed=4711)) != digest, "another seed gives the same requests"
        if self.fresh_streams:
            prompts = {_text(one) for one in self.requests()}
            others = {_text(one) for one in self.requests(stream=OTHER_STREAM)}
            assert not prompts & others, "a warm-up would fill the cache with what is measured"

    def test_lengths_are_as_it_says(self) -> None:
        """`prompt_tokens`, where it is told, is what the tokenizer counts; `input_tokens` is held where that is promised."""
        tokenizer = self.tokenizer()
        for one in self.requests():
            if one.prompt_tokens is not None and not one.answers and len(one.messages or "x") == 1:
                assert one.prompt_tokens == tokenizer.count([_text(one)])[0], one.request_id
        if self.exact_input:
            assert {one.prompt_tokens for one in self.requests(input_tokens=200)} == {200}

    def test_lengths_of_answers_are_as_asked(self) -> None:
        """`output_tokens` bounds every answer; `exact_output` is passed on, or held back where answers must end by themselves."""
        if self.bounds_output:
            assert all(one.output_tokens <= 17 for one in self.requests(output_tokens=17))
        assert not any(one.exact_output for one in self.requests(exact_output=False))

    def test_what_comes_before_is_there(self) -> None:
        """`after` and the answers in a prompt are of requests before it, and each mark stands in the prompt."""
        known: set[str] = set()
        for one in self.requests():
            assert set(one.after) <= known, f"{one.request_id} waits for requests that are not before it"
            for answer in one.answers:
                assert answer.of in known
                assert answer.mark in _text(one)
            known.add(one.request_id)

    def test_references_have_the_keys_that_it_names(self) -> None:
        """Scorers that grade the load's answers find them by these."""
        keys = self.workload.reference_keys
        for one in self.requests():
            if keys is not None and isinstance(one.reference, Mapping):
                assert set(keys) & set(one.reference) or not keys
            json.dumps(one.reference)

    # the whole

    def test_the_command_shows_it(self, tmp_path: Path) -> None:
        """`workload=NAME --preview`: examples, without an engine."""
        words = ("engine=openai", "launch=attach", "launch.base_url=http://127.0.0.1:9/v1", f"model.name={MODEL}")
        done = run_servebench(tmp_path, *words, *self._words(), "--preview")
        assert done.returncode == 0, done.stderr
        assert self.workload.name in done.stdout

    def test_the_command_sends_it(self, tmp_path: Path) -> None:
        """`workload=NAME` on a server that answers whatever is asked: every request is a row and was answered."""
        with FakeServer(ServerBehavior(models=(MODEL,))) as server:
            words = ("engine=openai", "launch=attach", f"launch.base_url={server.base_url}", f"model.name={MODEL}")
            load = ("load.concurrency=[2]", f"load.requests={COUNT}", "load.warmup_requests=2", "load.self_check=never")
            quiet = ("tracking=none", "telemetry.enabled=false", "study.name=s")
            done = run_servebench(tmp_path, *words, *load, *quiet, *self._words())
        assert done.returncode == 0, done.stderr
        import pandas as pd

        (table,) = tmp_path.glob("outputs/s/*/requests.parquet")
        rows = pd.read_parquet(table)
        assert set(rows["outcome"]) == {"ok"}
        assert len(rows) >= COUNT

    def _words(self) -> list[str]:
        return [f"workload={self.workload.name}", *overrides("workload", self.settings)]


def _text(request: Request) -> str:
    return request.prompt if request.prompt is not None else "\n".join(one.content for one in request.messages or ())


def _digest(requests: Sequence[Request]) -> str:
    return hashlib.sha256(repr(list(requests)).encode()).hexdigest()


_SCRIPT = """
import hashlib, importlib, json, sys
(module, name), (counter, words), settings, count, stream = json.loads(sys.argv[1])
kind = getattr(importlib.import_module(module), name)
tokenizer = getattr(importlib.import_module(counter), words)()
made = kind(kind.settings_type(name=kind.name, **settings))
requests = made.requests(count, stream=stream, tokenizer=tokenizer)
print(hashlib.sha256(repr(list(requests)).encode()).hexdigest())
"""


def _in_another_process(kind: type[Workload], settings: Mapping[str, Any], counter: type) -> str:
    """The digest of its requests, where texts have other hashes."""
    names = [[one.__module__, one.__name__] for one in (kind, counter)]
    asked = json.dumps([*names, dict(settings), COUNT, STREAM])
    env = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, asked], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
