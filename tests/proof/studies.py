"""What is measured: for each engine and each state of the machine a study of equal and changed engines, and a long one; then one
long point from which the product learns how the engine wanders here, and long studies that know it.

A *round* is one fresh start each of `base`, of `twin` (the same engine with the same settings) and of `changed`. All is measured
by the public commands, so what a kill interrupts `servebench resume` continues.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Literal

from servebench.store.layout import StudyFolder
from servebench.store.state import read_study
from servebench.util.errors import ConfigError, ServebenchError
from support.real_engines import OFFLINE, VLLM_ON_A_CPU

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDES = ("base", "twin", "changed")
NEIGHBOURS = ("none", "busy")
Settings = Mapping[str, object]
Kind = Literal["rounds", "long", "learn", "long_learned"]
"""`rounds` of fresh starts; a `long` study of one start of `base`; one long point of it to `learn` from; the long study again."""
NO_SETTINGS: Settings = {}
STOP_S = 120
"""How long an interrupted study may take to stop its engines."""
LOOK_EACH_S = 0.1


@dataclass(frozen=True)
class ProofEngine:
    """A real engine: `settings` of its config file `engine`, what `change` makes worse of it, and further words of a command.
    `variables` must be set, each to a place that exists."""

    engine: str
    settings: Settings
    change: Settings
    words: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


def engines() -> dict[str, ProofEngine]:
    """Return the engines that can be proved; tests/real/conftest.py says what their environment variables name."""
    cores = os.cpu_count() or 2
    gguf, folder = _place("GGUF"), _place("MODEL")
    vllm = {"executable": _place("VLLM"), "dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": 4}
    eager = {"enforce-eager": True}
    return {
        "llamacpp": ProofEngine(
            "llamacpp", {"threads": cores}, {"threads": max(1, cores - 1)}, (f"model.path={gguf}",) if gguf else ()
        ),
        "vllm": ProofEngine(
            "vllm",
            {**vllm, "env": VLLM_ON_A_CPU, "extra_args": eager},
            {"max_num_seqs": 2},
            (f"model.path={folder}",),
            ("VLLM", "MODEL"),
        ),
        # random weights time like real ones, so a GPU needs no download
        "vllm_gpu": ProofEngine(
            "vllm",
            {**vllm, "env": OFFLINE, "extra_args": {"load-format": "dummy"}, "max_num_seqs": 64},
            {"max_num_seqs": 16},
            (f"model.path={folder}",),
            ("VLLM", "MODEL"),
        ),
        "transformers_gpu": ProofEngine(
            "transformers",
            {"executable": _place("TRANSFORMERS"), "device": "cuda"},
            {"continuous_batching": False},
            (f"model.path={folder}",),
            ("MODEL",),
        ),
    }


def _place(name: str) -> str | None:
    return os.environ.get(f"SERVEBENCH_REAL_{name}") or None


def missing(engine: ProofEngine) -> list[str]:
    """Return the environment variables of an engine that name nothing on this machine."""
    named = [f"SERVEBENCH_REAL_{name}" for name in engine.variables]
    return [name for name in named if not (place := os.environ.get(name)) or not Path(place).exists()]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured: of each engine and neighbour `rounds` of points of `seconds` at `levels`, and in the long study
    `long_points` at each level of one start."""

    outputs: Path
    levels: tuple[int, ...]
    rounds: int
    seconds: float
    long_points: int
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProofStudy:
    """One study of the plan, of this `kind`."""

    engine: str
    neighbour: str
    kind: Kind = "rounds"
    of: ProofEngine = field(repr=False)
    plan: Plan = field(repr=False)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"proof_{self.engine}_{self.neighbour}{'' if self.kind == 'rounds' else f'_{self.kind}'}"

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.plan.outputs / self.name

    def words(self) -> list[str]:
        """Return the arguments of the command that measures it; writes the engines' config files."""
        folder = self.plan.outputs / "conf" / self.engine
        (folder / "engine").mkdir(parents=True, exist_ok=True)
        import yaml

        for side in SIDES:
            settings = {**self.of.settings, **(self.of.change if side == "changed" else {})}
            head = f"defaults: [{self.of.engine}, _self_]\n"
            text = yaml.safe_dump({key: value for key, value in settings.items() if value is not None})
            (folder / "engine" / f"proof_{side}.yaml").write_text(head + text)
        load = [f"load.concurrency=[{','.join(map(str, self.plan.levels))}]", f"load.duration_s={self.plan.seconds:g}"]
        load += ["load.until=null", "load.order=interleaved", "engine.reuse=false"]
        rest = [f"study.dir={self.plan.outputs}", f"study.name={self.name}", "tracking=none", *self.of.words]
        chosen = ["engine=proof_base", f"load.repeats={self.plan.long_points}"]
        if self.kind == "learn":
            chosen, load = chosen[:1], ["load=long", f"load.concurrency=[{self.plan.levels[-1]}]"]
        if self.kind == "rounds":
            chosen = ["-m", f"engine={','.join(f'proof_{side}' for side in SIDES)}", f"study.starts={self.plan.rounds}"]
        return [*chosen, "--config-dir", str(folder), *load, *rest, *self.plan.words]

    @property
    def finished(self) -> bool:
        """Whether all of it is measured."""
        try:
            return read_study(StudyFolder(self.path)).status == "finished"
        except (ServebenchError, OSError):
            return False


def studies(
    names: Sequence[str],
    neighbours: Sequence[str],
    plan: Plan,
    settings: Settings = NO_SETTINGS,
    change: Settings = NO_SETTINGS,
) -> list[ProofStudy]:
    """Return the studies of some engines, with further `settings`, or more to `change`, of all of them.

    Raises ConfigError for an engine that is unknown, or not on this machine.
    """
    known, found = engines(), []
    for name in names:
        if name not in known:
            raise ConfigError(f"--engine {name} is unknown; available: {', '.join(known)}")
        if lacking := missing(known[name]):
            raise ConfigError(
                f"--engine {name} needs {' and '.join(lacking)}; tests/real/conftest.py says what they name"
            )
        one = known[name]
        one = replace(one, settings={**one.settings, **settings}, change={**one.change, **change})
        each: tuple[Kind, ...] = ("rounds", "long")
        order: list[tuple[str, Kind]] = [(neighbour, kind) for neighbour in neighbours for kind in each]
        # on a busy machine nothing is learned
        order += [("none", "learn"), *((neighbour, "long_learned") for neighbour in neighbours)]
        found += [
            ProofStudy(engine=name, neighbour=neighbour, kind=kind, of=one, plan=plan) for neighbour, kind in order
        ]
    return found


def measure(study: ProofStudy, enough: Callable[[], bool] = lambda: False) -> bool:
    """Measure a study, or continue it; return False if it was interrupted because there was `enough`.

    Raises ConfigError if the command fails.
    """
    words = study.words()
    if (study.path / "plan.json").exists():
        words = ["resume", str(study.path), "--failed", "--outputs", str(study.plan.outputs)]
    with neighbour(study.neighbour), subprocess.Popen([sys.executable, "-m", "servebench", *words]) as command:
        try:
            while (code := command.poll()) is None and not enough():
                sleep(LOOK_EACH_S)
        except KeyboardInterrupt:
            code = None
        if code is None:
            command.send_signal(signal.SIGINT)
            command.wait(STOP_S)
            return False
    if not study.finished:
        raise ConfigError(f"servebench {' '.join(words)} ended with exit code {code} and left {study.name} unfinished")
    return True


@contextmanager
def neighbour(kind: str) -> Iterator[None]:
    """Have another process take a core in bursts, if `kind` is busy."""
    if kind == "none":
        yield
        return
    with subprocess.Popen([sys.executable, str(Path(__file__).with_name("neighbour.py"))]) as busy:
        try:
            yield
        finally:
            busy.terminate()
