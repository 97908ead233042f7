"""From a Hugging Face folder to a TensorRT engine: conversion and build, done once and kept.

Only the 1.2 line of TensorRT-LLM and older have this backend. An engine fits one model, one kind of GPU, one version of
the libraries and one set of build flags, so that is its key. Layout below `cache_dir/trtllm/engines/`:

    <what was asked>/lock
    <what was asked>/build.log
    <what was asked>/<what was found>/engine/      rank0.engine, config.json
    <what was asked>/<what was found>/build.json   what it was built from, and how long that took
    <what was asked>/current/<model>               a link to the engine that the last `prepare` chose
    <what was asked>/last.json                     whether that one was built then or reused

The name of the first folder depends on the settings alone, so that the serving command can be composed without a look
at the machine. Never met by the real `trtllm-build`: flags are those of its sources.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from servebench.contracts.engine import Command, LogHint, Preparation, Say
from servebench.engine.describe import describe_command
from servebench.engine.supervisor.guarded_process import GuardedProcess
from servebench.engine.supervisor.logs import find_hint, last_lines, log_size
from servebench.util.errors import EngineError

BUILDER = "trtllm-build"
PHASE = "engine_build"
QUERY_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
KEY_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What is to be built, from settings alone. `convert` is null for a model that is converted already; `home` is the
    folder of everything that was built for this. The folders in the commands are `{work}`, to be filled in."""

    home: Path
    served_name: str
    convert: Command | None
    build: Command
    model: Path
    executable: str
    timeout_s: float

    @property
    def engine(self) -> Path:
        """Where the server finds the engine. Its last part is the name by which the server calls the model."""
        return self.home / "current" / self.served_name


def digest(facts: Mapping[str, Any]) -> str:
    """A short name for facts that are plain data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a converted TensorRT-LLM checkpoint: weights by rank."""
    return (folder / "rank0.safetensors").is_file()


def is_engine(folder: Path) -> bool:
    """Whether a folder is a built engine."""
    return (folder / "rank0.engine").is_file()


def installed_versions(executable: str) -> dict[str, str]:
    """The versions of TensorRT-LLM and TensorRT beside the builder, from the metadata of its environment; where there is none,
    the age and size of the builder itself."""
    found = shutil.which(executable)
    if found is None:
        return {}
    program = Path(found)
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
    """The version of TensorRT-LLM if it has no such backend any more."""
    version = versions.get("tensorrt_llm", "")
    parts = re.match(r"(\d+)\.(\d+)", version)
    return version if parts is not None and (int(parts[1]), int(parts[2])) > (1, 2) else None


def gpus() -> list[str]:
    """Name and compute capability of each GPU as the driver tells; nothing where it does not."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def files_of(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of each file of a model: what changes when the model does."""
    found = [(path.relative_to(folder).as_posix(), path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [(name, state.st_size, state.st_mtime_ns) for name, state in found]


def what_is_there(plan: BuildPlan) -> dict[str, Any]:
    """The facts that an engine depends on beside what was asked for."""
    return {"model": files_of(plan.model), "versions": installed_versions(plan.executable), "gpus": gpus()}


def prepare(plan: BuildPlan, hints: Sequence[LogHint], say: Say) -> None:
    """Build the engine, or find it built, and link it. One process builds, others wait for it. Raises EngineError, with the
    last lines of the build's log."""
    facts = what_is_there(plan)
    kept = plan.home / digest(facts)
    try:
        plan.home.mkdir(parents=True, exist_ok=True)
        with _locked(plan, say):
            reused = (kept / "build.json").is_file()
            if not reused:
                _build(plan, kept, facts, hints, say)
            _link(plan.engine, kept / "engine")
            built = json.loads((kept / "build.json").read_text(encoding="utf-8"))
            last = {"reused": reused, "seconds": built["seconds"], "built_at": built["built_at"]}
            (plan.home / "last.json").write_text(json.dumps(last), encoding="utf-8")
    except Timeout as error:
        raise EngineError(f"{plan.home / 'lock'} was held by another build for over {plan.timeout_s:g} s") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise EngineError(f"cannot keep an engine in {plan.home}: {reason}; SERVEBENCH_CACHE moves it") from error
    if reused:
        say(f"engine build reused: it took {built['seconds']:.1f} s at {built['built_at']}")


@contextmanager
def _locked(plan: BuildPlan, say: Say) -> Iterator[None]:
    lock = FileLock(plan.home / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        say("waiting for another process that builds this engine")
        lock.acquire(timeout=plan.timeout_s)
    try:
        yield
    finally:
        lock.release()


def prepared(plan: BuildPlan) -> tuple[Preparation, ...]:
    """What the last `prepare` did; nothing if there was none."""
    try:
        last = json.loads((plan.home / "last.json").read_text(encoding="utf-8"))
        return (Preparation(name=PHASE, seconds=float(last["seconds"]), reused=bool(last["reused"])),)
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    beside = link.with_name(f".{os.getpid()}-{link.name}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target.absolute(), target_is_directory=True)
    beside.replace(link)


def _build(plan: BuildPlan, kept: Path, facts: Mapping[str, Any], hints: Sequence[LogHint], say: Say) -> None:
    # what a killed build left is of no use, and we hold the lock
    for stale in plan.home.glob("work-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = plan.home / f"work-{os.getpid()}"
    work.mkdir()
    seconds = {}
    try:
        for step, command in (("convert", plan.convert), ("build", plan.build)):
            if command is not None:
                say(f"TensorRT engine: {step}, once for this model, GPU, version and these flags")
                seconds[f"{step}_s"] = _run(step, filled(command, work), plan, hints)
        if not is_engine(work / "engine"):
            raise EngineError(f"{plan.executable} ended well and left no engine; its log is {plan.home / 'build.log'}")
        told = {
            **facts,
            **seconds,
            "seconds": sum(seconds.values()),
            "built_at": time.strftime("%Y-%m-%d %H:%M:%S"),
            "commands": [describe_command(one) for one in (plan.convert, plan.build) if one is not None],
        }
        (work / "build.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
        shutil.rmtree(work / "checkpoint", ignore_errors=True)
        shutil.rmtree(kept, ignore_errors=True)
        work.rename(kept)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"engine build took {told['seconds']:.1f} s")


def filled(command: Command, work: Path) -> Command:
    """The command with the folder that it works in."""
    return Command(argv=tuple(word.replace("{work}", str(work)) for word in command.argv), env=command.env)


def _run(step: str, command: Command, plan: BuildPlan, hints: Sequence[LogHint]) -> float:
    """Seconds that it took. Raises EngineError."""
    log = plan.home / "build.log"
    since = log_size(log)
    began = time.monotonic()
    guarded = GuardedProcess(command, log, STOP_TIMEOUT_S)
    try:
        in_time = guarded.has_ended(plan.timeout_s)
    finally:
        guarded.stop()
    if in_time and guarded.ended == "exit 0":
        return time.monotonic() - began
    found = find_hint(log, hints, since=since)
    last = last_lines(log, 1, since=since)
    how = (
        guarded.exit_description() if in_time else f"it took longer than {plan.timeout_s:g} s (engine.build_timeout_s)"
    )
    parts = [f"the TensorRT engine's {step} failed: {how}"]
    parts += [found.advice] if found else []
    parts += [f"its last words: {last[-1][:300]}"] if last else []
    raise EngineError(
        "; ".join([*parts, f"its log is {log}"]),
        kind=found.kind if found else "other",
        log_tail=last_lines(log, since=since),
    )
