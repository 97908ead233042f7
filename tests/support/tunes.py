"""Tunes of a few seconds, and what they leave in their study's folder."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

SIMULATED = (
    *("engine=llamacpp", "launch=simulated", "gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "workload=unique"),
    *("workload.output_tokens=16", "load.concurrency=[32]", "load.requests=100", "tracking=none", "study.name=t"),
    *("launch.wander_sd=0.005", "launch.start_sd=0.005", "tune.space=space.yaml"),
)
"""Words of a tune of which the most requests at once are best: `space.yaml` has the numbers to try."""
STARTS_OF_NO_TIME = "parameters:\n  engine.max_num_seqs: {values: [2, 8]}\n  engine.ready_timeout_s: {values: [0.05]}\n"
"""A space of an emulated engine, half of which does not start."""


def without(words: tuple[str, ...], *begun: str) -> list[str]:
    """Return the words that begin with none of these."""
    return [word for word in words if not word.startswith(begun)]


def answer(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "outputs/t/tune_answer.json").read_text())
    return found


def points(folder: Path) -> pd.DataFrame:
    """Return the points of all candidates, each with its `run`."""
    files = sorted((folder / "outputs/t").glob("*/points.parquet"))
    # read at once: pyarrow opens a path twice, and a tune that runs may replace the file between
    return pd.concat([pd.read_parquet(BytesIO(file.read_bytes())).assign(run=file.parent.name) for file in files])


def statuses(folder: Path) -> tuple[str, set[str]]:
    """Return how the study and its runs have ended."""
    study = folder / "outputs/t"
    of_study, *of_runs = (
        json.loads(file.read_text())["status"] for file in (study / "study.json", *study.glob("*/run.json"))
    )
    return of_study, set(of_runs)


def failed_starts(folder: Path) -> list[dict[str, Any]]:
    """Return the candidates whose engine did not start."""
    tried = answer(folder)["tried"]
    return [one for one in tried if one["left"] is not None and one["left"]["reason"] == "start failed"]
