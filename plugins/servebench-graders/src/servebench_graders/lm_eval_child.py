"""Run lm-evaluation-harness in a separate process: it is heavy, writes to the terminal and has its own event loop.

Reads a job as JSON from standard input and writes JSON to the file that the job names: `{"samples": [...]}` or
`{"error": "one line"}`. The API key comes in the environment, never in the job.
"""

import json
import os
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MAIN_METRICS = ("acc", "exact_match", "pass@1", "em", "f1")
"""The metrics that say whether a sample is right, in order; if it has none of them, its first number does."""


def load(job: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the task manager and the tasks by name, with their data. Raises what the harness raises."""
    from lm_eval.tasks import TaskManager

    if job["path"]:
        # much faster without the thousands of tasks that ship with the harness
        own = TaskManager(include_path=job["path"], include_defaults=False)
        if all(name in own.all_tasks for name in job["tasks"]):
            return own, own.load(list(job["tasks"]))["tasks"]
    manager = TaskManager(include_path=job["path"] or None)
    return manager, manager.load(list(job["tasks"]))["tasks"]


def evaluate(job: Mapping[str, Any], manager: Any, name: str, task: Any) -> Iterator[dict[str, Any]]:
    """Yield one task's samples as plain data. Raises what the harness raises."""
    from lm_eval import simple_evaluate

    if isinstance(job["verify_tls"], str):
        os.environ.update(dict.fromkeys(("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), job["verify_tls"]))
    count = len(task.eval_docs)
    chosen = list(range(count))
    if job["count"] is not None and job["count"] < count:
        chosen = sorted(random.Random(job["seed"]).sample(chosen, job["count"]))
    generates = task.OUTPUT_TYPE == "generate_until"
    chat = generates and job["api"] == "chat"
    arguments: dict[str, Any] = {
        "model": job["model"],
        "base_url": job["base_url"] + ("/chat/completions" if chat else "/completions"),
        "num_concurrent": job["concurrency"],
        "max_retries": 3,
        "timeout": int(job["timeout_s"]),
        "verify_certificate": bool(job["verify_tls"]),
        "tokenizer_backend": None if generates else "huggingface",
        "tokenized_requests": not generates,
    }
    if not generates:
        arguments["tokenizer"] = job["tokenizer"]
    results = simple_evaluate(
        model="local-chat-completions" if chat else "local-completions",
        model_args=arguments,
        tasks=[name],
        task_manager=manager,
        num_fewshot=job["shots"],
        samples={name: chosen},
        apply_chat_template=chat,
        log_samples=True,
        bootstrap_iters=0,
        random_seed=job["seed"],
        fewshot_random_seed=job["seed"],
        gen_kwargs={"max_gen_toks": job["max_tokens"]} if generates and job["max_tokens"] else None,
    )
    seen = set()
    for sample in (results or {})["samples"][name]:
        # with several filters a sample occurs several times; the task's first filter counts
        if sample["doc_id"] not in seen:
            seen.add(sample["doc_id"])
            yield {"task": name, **plain(sample, generates=generates)}


def plain(sample: Mapping[str, Any], *, generates: bool) -> dict[str, Any]:
    """Return the stored part of a sample. `correct` is null if its metric is not 0 or 1; `score` is the metric."""
    numbers = {
        metric: float(sample[metric])
        for metric in sample["metrics"]
        if isinstance(sample.get(metric), (int, float)) or hasattr(sample.get(metric), "item")
    }
    main = next((metric for metric in MAIN_METRICS if metric in numbers), next(iter(numbers), None))
    value = numbers[main] if main is not None else None
    prompt = sample["arguments"][0][0]
    if not isinstance(prompt, str):
        # the harness wraps a chat
        prompt = prompt[0] if len(prompt) == 1 and isinstance(prompt[0], str) else json.dumps(prompt, default=str)
    target = sample["target"]
    if generates:
        text = str(sample["resps"][0][0])
        extracted = str(sample["filtered_resps"][0])
    else:
        choices = [str(one[1]) for one in sample["arguments"]]
        likelihoods = [float(one[0][0]) for one in sample["resps"]]
        text = extracted = choices[max(range(len(likelihoods)), key=likelihoods.__getitem__)]
        target = choices[target] if isinstance(target, int) and target < len(choices) else target
    return {
        "doc_id": int(sample["doc_id"]),
        "prompt": prompt,
        "target": str(target),
        "text": text,
        "extracted": extracted,
        "correct": bool(value) if value in (0.0, 1.0) else None,
        "score": value,
        "detail": {"metric": main, "filter": sample["filter"], **numbers},
    }


def main() -> None:
    """Run the job on standard input."""
    job = json.loads(sys.stdin.read())
    answer: dict[str, Any]
    try:
        manager, tasks = load(job)
        samples: list[dict[str, Any]] = []
        if not job["check"]:
            for name, task in tasks.items():
                samples.extend(evaluate(job, manager, name, task))
        answer = {"samples": samples, "tasks": {name: task.OUTPUT_TYPE for name, task in tasks.items()}}
    except Exception as problem:  # noqa: BLE001 - every error of the harness must come back as one line
        message = " ".join(str(problem).split()) or "no message"
        answer = {"error": f"{type(problem).__name__}: {message}"[:400]}
    Path(job["answer"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
