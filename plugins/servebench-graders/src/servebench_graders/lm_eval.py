"""Tasks of lm-evaluation-harness against the running endpoint. Needs the package lm-eval of the extra `lm-eval`."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from servebench.plugin import (
    HUB_TOKENS,
    Endpoint,
    Grade,
    Item,
    ItemAnswer,
    Judged,
    QualityError,
    Scorer,
    python_environment,
)

CHECK_TIMEOUT_S = 600
STOP_S = 5.0
CHILD = "servebench_graders.lm_eval_child"


class LmEvalScorer(Scorer):
    """Runs the harness against the endpoint: tasks that generate, by chat or completions; tasks that compare likelihoods, by
    completions with `echo`, which not every engine supports. `quality.path` is a folder of your own task files. The harness gets
    no reasoning that a server sends apart, and grades thinking inside an answer along with it."""

    name = "lm_eval"
    method = "lm-evaluation-harness; the task's own metric"
    asks_itself = True
    cuts_thinking = False

    def check(self) -> list[str]:
        """See Scorer.check. Loads the tasks' data, so that missing data is reported before an engine starts."""
        if importlib.util.find_spec("lm_eval") is None:
            return [
                "quality=lm_eval needs the package lm-eval; install it with pip install 'servebench-graders[lm-eval]'"
            ]
        if not self.settings.tasks:
            return ["quality.tasks is empty; set tasks, such as quality.tasks=[arc_easy]"]
        if self.settings.path is not None and not Path(self.settings.path).expanduser().exists():
            return [f"quality.path={self.settings.path}: no such folder of task files"]
        problem = _task_error(self.settings.tasks, self._path())
        return [problem] if problem else []

    def _path(self) -> str:
        return "" if self.settings.path is None else str(Path(self.settings.path).expanduser().absolute())

    def evaluate(self, endpoint: Endpoint, *, count: int | None, concurrency: int) -> Sequence[Judged]:
        """See Scorer.evaluate. The harness reports no times of single requests."""
        job = {
            "check": False,
            "path": self._path(),
            "count": count,
            "shots": self.settings.shots or None,
            "concurrency": concurrency,
            "tokenizer": endpoint.tokenizer or endpoint.model,
            **{name: getattr(self.settings, name) for name in ("tasks", "seed", "max_tokens", "api", "timeout_s")},
            **{name: getattr(endpoint, name) for name in ("base_url", "model", "verify_tls")},
        }
        answer = _run_child(job, key=_api_key(endpoint.headers), timeout_s=None)
        if "error" in answer:
            raise QualityError(f"quality=lm_eval: {_hint(str(answer['error']))}")
        return [_judged(sample) for sample in answer["samples"]]


@cache
def _task_error(tasks: tuple[str, ...], path: str) -> str | None:
    """Return what is wrong with tasks or their data; cached."""
    answer = _run_child({"check": True, "tasks": list(tasks), "path": path}, key=None, timeout_s=CHECK_TIMEOUT_S)
    if "error" not in answer:
        return None
    return f"quality.tasks={','.join(tasks)}: {_hint(str(answer['error']))}"


def _hint(error: str) -> str:
    """Return the harness's error and what to do about it."""
    if "not a registered task" in error:
        return f"{error}; 'lm-eval ls tasks' lists them; quality.path sets a folder of your own"
    if "Couldn't reach" in error or "ConnectionError" in error or "OfflineMode" in error:
        return (
            f"the data is not on this machine and the hub is unreachable ({error}); download it where there is a network, "
            "or write a task file with dataset_path: json and set quality.path to its folder"
        )
    if "logprobs" in error:
        return f"{error}; the engine returns no log-probabilities of the prompt; use tasks that generate"
    return error


def _api_key(headers: Mapping[str, str]) -> str | None:
    """Return the API key of an Authorization header."""
    value = next((text for name, text in headers.items() if name.lower() == "authorization"), "")
    return value.removeprefix("Bearer ").strip() or None


def _run_child(job: Mapping[str, Any], *, key: str | None, timeout_s: float | None) -> dict[str, Any]:
    """Run a job in the child and return its answer. Raises QualityError when the child dies; stops it when interrupted."""
    quiet = {"TQDM_DISABLE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"}
    env = python_environment({**quiet, "OPENAI_API_KEY": key or "none"}, *HUB_TOKENS)
    with tempfile.TemporaryDirectory(prefix="servebench-lm-eval-") as folder:
        target, log = Path(folder) / "answer.json", Path(folder) / "log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", CHILD], stdin=subprocess.PIPE, stdout=output, stderr=output, env=env
            )
            try:
                child.communicate(json.dumps({**job, "answer": str(target)}).encode(), timeout=timeout_s)
            except subprocess.TimeoutExpired:
                return {"error": f"TimeoutExpired: the harness took longer than {timeout_s:g} s"}
            finally:
                _stop(child)
        if not target.exists():
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise QualityError(f"lm-eval ended with {child.returncode}: {lines[-1] if lines else 'no output'}")
        answer: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return answer


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _judged(sample: Mapping[str, Any]) -> Judged:
    item = Item(
        item_id=f"{sample['task']}-{sample['doc_id']}",
        prompt=str(sample["prompt"]),
        expected=str(sample["target"]),
        max_tokens=0,
        task=str(sample["task"]),
    )
    grade = Grade(
        correct=sample["correct"], extracted=sample["extracted"], score=sample["score"], detail=sample["detail"]
    )
    answer = ItemAnswer(item_id=item.item_id, text=str(sample["text"])).to_grade(cut=False)
    return Judged(item=item, answer=answer, grade=grade)
