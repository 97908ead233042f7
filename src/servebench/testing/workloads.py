"""What every workload plugin must satisfy, as tests to inherit.

    class TestMine(WorkloadConformance):
        workload = MyWorkload

The last two tests run the workload with the command: shown without an engine, and sent to a server in this process.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.testing.command import (
    assert_is_installed,
    attach_overrides,
    overrides,
    run_in_another_process,
    run_servebench,
)
from servebench.testing.server import FakeServer, plain_server

MODEL = "model"
COUNT = 8
STREAM, OTHER_STREAM = "point-1-0", "point-2-0"


class WordTokenizer:
    """Count words and punctuation marks, each with the preceding space. It is exact, so lengths must be exact too."""

    name = "words"
    exact = True

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of words and punctuation marks of each text."""
        return [len(self._ends(text)) for text in texts]

    def truncate(self, text: str, tokens: int) -> str:
        """Return the first ones."""
        ends = self._ends(text)
        return text if len(ends) <= tokens else text[: ends[tokens - 1]] if tokens else ""

    @staticmethod
    def _ends(text: str) -> list[int]:
        return [match.end() for match in re.finditer(r"\s*(?:\w+|[^\w\s])", text)]


class WorkloadConformance:
    """Inherit from this class, set `workload`, and declare what the suite cannot know.

    Attributes:
        workload: the class under test.
        settings: small workload settings for the tests.
        exact_input: whether prompts have exactly `input_tokens` tokens with an exact tokenizer.
        fresh_streams: whether another stream (warm-up, the next point) has other prompts; false for a fixed data set.
        seeded: whether another seed gives other requests.
        bounds_output: whether `output_tokens` limits every answer; false if lengths come from the data.
    """

    workload: ClassVar[type[Workload]]
    settings: ClassVar[Mapping[str, Any]] = {}
    exact_input: ClassVar[bool] = False
    fresh_streams: ClassVar[bool] = True
    seeded: ClassVar[bool] = True
    bounds_output: ClassVar[bool] = True

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of these tests."""
        return WordTokenizer()

    def make(self, **settings: Any) -> Workload:
        """Return the workload with its settings."""
        values = {"name": self.workload.name, **self.settings, **settings}
        return self.workload(self.workload.settings_type(**values))

    def requests(self, count: int = COUNT, stream: str = STREAM, **settings: Any) -> Sequence[Request]:
        """Return requests of the workload."""
        return self.make(**settings).requests(count, stream=stream, tokenizer=self.tokenizer())

    def test_description(self) -> None:
        """Settings that extend the shared ones."""
        assert issubclass(self.workload.settings_type, WorkloadSettings)
        assert is_dataclass(self.workload.settings_type)

    def test_config_composes(self) -> None:
        """`workload=NAME` selects its own settings: the plugin is installed and its config group is found."""
        assert_is_installed("workload", self.workload, *attach_overrides())

    def test_check_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It reports no problem with these settings."""
        monkeypatch.chdir(tmp_path)
        assert self.make().check() == []
        assert list(tmp_path.iterdir()) == []

    def test_requests_are_complete(self) -> None:
        """As many as requested, with unique ids, either chat or completion, a limit of the answer, and a JSON body."""
        requests = self.requests()
        assert len(requests) == COUNT
        assert len({request.request_id for request in requests}) == COUNT
        for request in requests:
            assert (request.messages is None) != (request.prompt is None), (
                f"{request.request_id}: either messages or a prompt"
            )
            assert _text(request).strip()
            assert request.output_tokens > 0
            assert request.temperature is None or request.temperature >= 0
            json.dumps([request.schema, dict(request.extra)])
        assert len(self.requests(1)) == 1

    def test_requests_depend_on_settings_seed_and_stream_only(self) -> None:
        """They are the same in another process, and different with another seed or stream."""
        digest = _digest(self.requests())
        assert _digest(self.requests()) == digest
        names = [(kind.__module__, kind.__name__) for kind in (self.workload, type(self.tokenizer()))]
        assert run_in_another_process(_SCRIPT, *names, dict(self.settings), COUNT, STREAM) == digest
        if self.seeded:
            assert _digest(self.requests(seed=4711)) != digest, "another seed gives the same requests"
        if self.fresh_streams:
            prompts = {_text(one) for one in self.requests()}
            others = {_text(one) for one in self.requests(stream=OTHER_STREAM)}
            assert not prompts & others, "a warm-up would fill the cache with measured prompts"

    def test_prompt_lengths(self) -> None:
        """`prompt_tokens`, if set, is the tokenizer's count; with `exact_input`, prompts have `input_tokens` tokens."""
        tokenizer = self.tokenizer()
        for one in self.requests():
            if one.prompt_tokens is not None and not one.answers and len(one.messages or "x") == 1:
                assert one.prompt_tokens == tokenizer.count([_text(one)])[0], one.request_id
        if self.exact_input:
            assert {one.prompt_tokens for one in self.requests(input_tokens=200)} == {200}

    def test_answer_lengths(self) -> None:
        """`output_tokens` limits every answer; without `exact_output` no request has it."""
        if self.bounds_output:
            assert all(one.output_tokens <= 17 for one in self.requests(output_tokens=17))
        assert not any(one.exact_output for one in self.requests(exact_output=False))

    def test_dependencies_are_earlier_requests(self) -> None:
        """`after` and the answers in a prompt refer to earlier requests, and the prompt contains each mark."""
        known: set[str] = set()
        for one in self.requests():
            assert set(one.after) <= known, f"{one.request_id} waits for requests that are not earlier"
            for answer in one.answers:
                assert answer.of in known
                assert answer.mark in _text(one)
            known.add(one.request_id)

    def test_references_have_their_keys(self) -> None:
        """Scorers that grade the load's answers need `reference_keys`."""
        keys = self.workload.reference_keys
        for one in self.requests():
            if keys is not None and isinstance(one.reference, Mapping):
                assert set(keys) & set(one.reference) or not keys
            json.dumps(one.reference)

    def test_preview(self, tmp_path: Path) -> None:
        """`workload=NAME --preview` shows examples without an engine."""
        done = run_servebench(tmp_path, *attach_overrides(), *self._overrides(), "--preview")
        assert done.returncode == 0, done.stderr
        assert self.workload.name in done.stdout

    def test_run(self, tmp_path: Path) -> None:
        """`workload=NAME` with a server that answers every request: every request is a row."""
        with FakeServer(plain_server(MODEL)) as server:
            target = attach_overrides(server.base_url, MODEL)
            load = ("load.concurrency=[2]", f"load.requests={COUNT}", "load.warmup_requests=2", "load.self_check=never")
            disabled = ("tracking=none", "telemetry.enabled=false", "study.name=s")
            done = run_servebench(tmp_path, *target, *load, *disabled, *self._overrides())
        assert done.returncode == 0, done.stderr
        import pandas as pd

        (table,) = tmp_path.glob("outputs/s/*/requests.parquet")
        rows = pd.read_parquet(table).query("not filler")
        assert set(rows["outcome"]) == {"ok"}
        assert len(rows) >= COUNT

    def _overrides(self) -> list[str]:
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
