"""Studies of all kinds as the commands leave them, planned and not measured: their files are one's own, and signed."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from servebench.config import compose_jobs
from servebench.contracts.tuning import Candidate
from servebench.registry.registry import registry
from servebench.store.layout import StudyFolder
from servebench.store.manifest import build_manifest, write_manifest
from servebench.store.plan import write_plan
from servebench.store.state import write_study
from servebench.store.tune import write_tune
from servebench.study.study import new_state, planned_runs
from servebench.study.tune_plan import plan_tune

MODEL = ("gpu=rtx4090", "model=qwen2.5-1.5b-instruct", "workload=unique", "workload.output_tokens=16", "load.requests=5",
         "load.concurrency=[1]", "load.self_check=never")  # fmt: skip
TWO = ("-m", "engine=vllm,sglang", *MODEL)
NO_SERVER = "http://127.0.0.1:9/v1"
STUDIES: Mapping[str, tuple[str, ...]] = {
    "simulated": (*TWO, "launch=simulated", "tracking=none"),
    "decided": (*TWO, "launch=simulated", "tracking=none", "study.until=decided", "study.budget=30m"),
    "process": (
        *TWO,
        "engine.executable=/no/engine",
        "launch.pass_env=[SHOWN_NAME]",
        "model.path=/no/model",
        "tracking=none",
    ),
    "docker": (*TWO, "launch=docker", "launch.image=no/image", "launch.volumes=[/no/folder:/data]", "tracking=none"),
    "attached": (
        *("-m", "engine=openai", *MODEL, "load.concurrency=[1],[2]", "launch=attach", f"launch.base_url={NO_SERVER}"),
        *("launch.api_key_env=SHOWN_NAME", "tracking.uri=http://127.0.0.1:9", "quality=judge"),
        *(f"quality.judge.base_url={NO_SERVER}", "quality.judge.model=j", "quality.judge.api_key_env=SHOWN_NAME"),
    ),
    "cluster": (
        *TWO,
        "launch=simulated",
        "tracking=none",
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.setup=['true']",
    ),
}
"""The words of studies by what makes them act."""
SIMULATED = ("simulated", "decided")
"""Those that run here if they are one's own."""


def planned_study(outputs: Path, name: str, words: tuple[str, ...]) -> Path:
    jobs = compose_jobs(words, registry())
    folder, plan = StudyFolder(outputs / name), planned_runs(jobs)
    folder.path.mkdir(parents=True)
    write_plan(folder, plan)
    state = replace(new_state(name, words, jobs, plan), status="interrupted", ended_s=1.0)
    write_study(folder, state)
    for run in plan[:1]:
        run_folder = folder.create_run(run.name)
        facts = {"run_id": f"{name}/{run.name}", "overrides": list(run.overrides), "words": list(words)}
        write_manifest(run_folder.manifest, build_manifest(config=run.config, facts=facts, machine={"gpus": []}))
    return folder.path


def planned_tune(outputs: Path, name: str) -> Path:
    """A tune with what only `tune.json` has: a candidate beside the plan, a judge, a space and a folder to write to."""
    words = ("engine=vllm", "launch=simulated", *MODEL, "tune.trials=6", "tune.count=3", f"tune.out={outputs / name / 'out'}",
             "tracking=none")  # fmt: skip
    plan = plan_tune(words, registry())
    folder = StudyFolder(outputs / name)
    folder.path.mkdir(parents=True)
    study = new_state(name, ("tune", *words), plan.jobs[:1], plan.runs[:1])
    write_plan(folder, plan.runs)
    quality = dict(compose_jobs(STUDIES["attached"], registry())[0].resolved["quality"])
    proposed = Candidate(name="limit 1", engine="vllm", origin="limit", settings={"engine.max_num_seqs": 7},
                         run="09_vllm_limit-1")  # fmt: skip
    candidates = (*plan.state.candidates, proposed)
    state = replace(plan.state, quality=quality, candidates=candidates, proposed=True)
    write_tune(folder, state, study)
    write_study(folder, replace(study, status="interrupted", ended_s=1.0))
    return folder.path


BUILDERS: Mapping[str, Callable[[Path, str], Path]] = {
    **{kind: lambda outputs, name, words=words: planned_study(outputs, name, words) for kind, words in STUDIES.items()},
    "tune": planned_tune,
}


def copied(made: Path, outputs: Path, name: str = "s") -> Path:
    """Return a copy of a study in another outputs folder."""
    return Path(shutil.copytree(made, outputs / name))
