"""Synthetic /proc trees, and samples of a machine as `telemetry.machine` takes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from servebench.contracts.telemetry import Reading

SECOND = 1_000_000_000


def write_proc(
    root: Path,
    tasks: Mapping[int, tuple[int, str, float, float]],
    *,
    cpus: Sequence[tuple[float, float]] = (),
    sessions: Mapping[int, int] | None = None,
    began: Mapping[int, int] | None = None,
) -> Path:
    """Write what the kernel shows: {pid: (parent, program, CPU seconds, those of its ended children)} at 100 ticks a second,
    and (busy, stolen) seconds of each CPU. Processes that are not named any more are gone."""
    for old in root.glob("[0-9]*"):
        if int(old.name) not in tasks:
            (old / "stat").unlink()
            old.rmdir()
    for pid, (parent, program, cpu_s, reaped_s) in tasks.items():
        (root / str(pid)).mkdir(parents=True, exist_ok=True)
        fields = ["S", parent, pid, (sessions or {}).get(pid, 1), 0, -1, 0, 0, 0, 0, 0, round(100 * cpu_s), 0]
        fields += [round(100 * reaped_s), 0, 20, 0, 1, 0, (began or {}).get(pid, 7), 0, 0]
        (root / str(pid) / "stat").write_text(f"{pid} ({program}) {' '.join(map(str, fields))}\n")
    lines = [
        f"cpu{number} {round(100 * busy)} 0 0 0 0 0 0 {round(100 * stolen)} 0 0"
        for number, (busy, stolen) in enumerate(cpus)
    ]
    root.mkdir(exist_ok=True)
    (root / "stat").write_text("\n".join(["cpu 1 2 3", *lines, "intr 1"]) + "\n")
    return root


def machine_readings(
    seconds: float,
    *,
    own: float = 1.6,
    cores: float = 2.0,
    step_s: float = 0.5,
    others: Mapping[tuple[int, str], Sequence[tuple[float, float, float]]] | None = None,
    scope: str = "",
    start_ns: int = 0,
) -> list[Reading]:
    """Return the readings of a machine on which `others` ((pid, program): (from s, to s, cores)) take cores, exactly as long as
    they say; the load gets what they leave. pid 0 is steal time."""

    def one(t_ns: int, name: str, value: float, labels: str = "") -> Reading:
        return Reading(t_ns=t_ns, source="machine", name=name, raw_name=name, labels=labels, value=value)

    found = [one(start_ns, "machine_cores", cores, scope)]
    for step in range(1, round(seconds / step_s) + 1):
        low, high = (step - 1) * step_s, step * step_s
        at = start_ns + round(high * SECOND)
        taken = 0.0
        for (pid, program), stretches in (others or {}).items():
            used = sum(max(0.0, min(high, b) - max(low, a)) * c for a, b, c in stretches) / step_s
            taken += used
            if pid == 0:
                found.append(one(at, "steal_cores", used))
            elif used >= 0.02:
                found.append(one(at, "foreign_cores", used, f'pid="{pid}",program="{program}"'))
        found += [one(at, "machine_cores", cores, scope), one(at, "own_cores", min(own, max(0.3, cores - taken)))]
    return found
