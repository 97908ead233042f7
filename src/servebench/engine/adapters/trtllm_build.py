"""Build a TensorRT engine from a Hugging Face folder: convert, build, and cache the result.

Only TensorRT-LLM 1.2 and earlier have this backend. An engine fits one model, one kind of GPU, one version of the libraries
and one set of build flags, so these are its key. Layout below `cache_dir/trtllm/engines/`:

    <hash of the settings>/lock
    <hash of the settings>/build.log
    <hash of the settings>/<hash of the machine>/engine/      rank0.engine, config.json
    <hash of the settings>/<hash of the machine>/build.json   what it was built from, and how long that took
    <hash of the settings>/current/<model>                    a link to the engine that the last `prepare` chose
    <hash of the settings>/last.json                          whether that engine was built then or reused

The first folder's name depends on the settings alone, so that the serving command can be composed without looking at the
machine. Never run with the real `trtllm-build`: the flags are those of its sources.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from servebench.contracts.engine import Command, LogHint, Preparation, Say
from servebench.engine.adapters.flags import command_output
from servebench.engine.adapters.trtllm_plan import BUILDER, BuildPlan, digest, in_folder, is_engine
from servebench.engine.describe import describe_command
from servebench.engine.supervisor.guarded_process import GuardedProcess
from servebench.engine.supervisor.logs import explain_failure, log_size
from servebench.util.children import find_program
from servebench.util.errors import EngineError, FailureKind, reason_of

PHASE = "engine_build"
STOP_TIMEOUT_S = 10.0
LAST_VERSION = (1, 2)
"""The last version of TensorRT-LLM with this backend."""


def installed_versions(executable: str) -> dict[str, str]:
    """Return the versions of TensorRT-LLM and TensorRT in the builder's environment; without their metadata, the size and
    modification time of the builder itself."""
    path = find_program(executable)
    if path is None:
        return {}
    program = Path(path)
    versions = {}
    for root in {program.parent.parent, program.resolve().parent.parent}:
        for packages in ("site-packages", "dist-packages"):
            for info in sorted(root.glob(f"lib/python3*/{packages}/tensorrt*.dist-info")):
                name, _, version = info.name.removesuffix(".dist-info").partition("-")
                versions[name] = version
    if "tensorrt_llm" not in versions:
        state = program.resolve().stat()
        versions[BUILDER] = f"{state.st_size} {state.st_mtime_ns}"
    return versions


def too_new(versions: Mapping[str, str]) -> str | None:
    """Return the version of TensorRT-LLM if it no longer has this backend, else None."""
    version = versions.get("tensorrt_llm", "")
    parts = re.match(r"(\d+)\.(\d+)", version)
    return version if parts is not None and (int(parts[1]), int(parts[2])) > LAST_VERSION else None


def gpus() -> list[str]:
    """Return name and compute capability of each GPU; empty if the driver does not report them."""
    output = command_output(["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"])
    return [line.strip() for line in output.splitlines() if line.strip()]


def model_files(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, size and modification time of each file of a model."""
    files = [(path.relative_to(folder).as_posix(), path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [(name, state.st_size, state.st_mtime_ns) for name, state in files]


def machine_facts(plan: BuildPlan) -> dict[str, Any]:
    """Return what an engine depends on besides the settings: model files, library versions and GPUs."""
    return {"model": model_files(plan.model), "versions": installed_versions(plan.executable), "gpus": gpus()}


def prepare(plan: BuildPlan, hints: Sequence[LogHint], say: Say) -> None:
    """Build the engine, or reuse a built one, and link it. One process builds while others wait.

    Raises EngineError with the last lines of the build's log.
    """
    facts = machine_facts(plan)
    target = plan.home / digest(facts)
    try:
        plan.home.mkdir(parents=True, exist_ok=True)
        with _locked(plan, say):
            reused = (target / "build.json").is_file()
            if not reused:
                _build(plan, target, facts, hints, say)
            _link(plan.engine, target / "engine")
            built = json.loads((target / "build.json").read_text(encoding="utf-8"))
            last = {"reused": reused, "seconds": built["seconds"], "built_at": built["built_at"]}
            (plan.home / "last.json").write_text(json.dumps(last), encoding="utf-8")
    except Timeout as error:
        raise EngineError(
            f"another build held {plan.home / 'lock'} for more than {plan.timeout_s:g} s (engine.build_timeout_s)"
        ) from error
    except OSError as error:
        raise EngineError(
            f"cannot store an engine in {plan.home}: {reason_of(error)}; set SERVEBENCH_CACHE to another folder"
        ) from error
    if reused:
        say(f"reusing the engine built at {built['built_at']} (the build took {built['seconds']:.1f} s)")


def _locked(plan: BuildPlan, say: Say) -> AbstractContextManager[Any]:
    lock = FileLock(plan.home / "lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        say("waiting for another process that builds this engine")
        return lock.acquire(timeout=plan.timeout_s)


def last_preparation(plan: BuildPlan) -> tuple[Preparation, ...]:
    """Return what the last `prepare` did; empty if there was none."""
    try:
        last = json.loads((plan.home / "last.json").read_text(encoding="utf-8"))
        return (Preparation(name=PHASE, seconds=float(last["seconds"]), reused=bool(last["reused"])),)
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    temporary = link.with_name(f".{os.getpid()}-{link.name}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target.absolute(), target_is_directory=True)
    temporary.replace(link)


def _build(plan: BuildPlan, target: Path, facts: Mapping[str, Any], hints: Sequence[LogHint], say: Say) -> None:
    # this process holds the lock, so any other working folder is left from a killed build
    for stale in plan.home.glob("work-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = plan.home / f"work-{os.getpid()}"
    work.mkdir()
    seconds = {}
    try:
        for step, command in (("convert", plan.convert), ("build", plan.build)):
            if command is not None:
                say(f"TensorRT engine: {step} (once for this model, GPU, version and flags)")
                seconds[f"{step}_s"] = _run(step, in_folder(command, work), plan, hints)
        if not is_engine(work / "engine"):
            raise EngineError(
                f"{plan.executable} (engine.builder) succeeded but wrote no engine; log: {plan.home / 'build.log'}"
            )
        built = {
            **facts,
            **seconds,
            "seconds": sum(seconds.values()),
            "built_at": time.strftime("%Y-%m-%d %H:%M:%S"),
            "commands": [describe_command(command) for command in (plan.convert, plan.build) if command is not None],
        }
        (work / "build.json").write_text(json.dumps(built, indent=1), encoding="utf-8")
        shutil.rmtree(work / "checkpoint", ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"the engine's build took {built['seconds']:.1f} s")


def _run(step: str, command: Command, plan: BuildPlan, hints: Sequence[LogHint]) -> float:
    log = plan.home / "build.log"
    since = log_size(log)
    began_s = time.monotonic()
    guarded = GuardedProcess(command, log, STOP_TIMEOUT_S)
    try:
        in_time = guarded.has_ended(plan.timeout_s)
    finally:
        guarded.stop()
    if in_time and guarded.ended == "exit 0":
        return time.monotonic() - began_s
    reason = guarded.exit_description() if in_time else f"longer than {plan.timeout_s:g} s (engine.build_timeout_s)"
    message, hint = explain_failure(f"the {step} step of the TensorRT engine failed: {reason}", log, hints, since=since)
    raise EngineError(message, kind=hint.kind if hint else FailureKind.OTHER)
