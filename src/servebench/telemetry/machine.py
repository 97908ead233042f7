"""Read who uses this machine besides servebench and the engine: CPU time by process, steal time, pressure, clock, temperature."""

import contextlib
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from servebench.contracts.engine import RunningEngine
from servebench.contracts.telemetry import CLIENT_ONLY, Reading, Subject, TelemetrySource
from servebench.telemetry.processes import common_readings
from servebench.util.processes import listeners, process_tree, usable_cpus

PROC = Path("/proc")
CPUS = Path("/sys/devices/system/cpu")
INTERVAL_S = 0.5
"""Two samples a second date a disturbance to within a second."""
INTERVAL_S_MIN = 0.2
"""The kernel counts CPU time in ticks of 4 to 10 ms: over a shorter time they say little."""
CORES_MIN = 0.02
"""Processes that use less are added up."""
BUSY_SHARE = 0.15
"""The share of the CPUs that others may take before a study without a word about it."""
BUSY_CORES_MIN = 0.05
NAMED_MAX = 3
CPUS_READ_MAX = 16
"""Of how many CPUs clock and temperature are read: each read takes time."""
KERNEL = 2
"""The parent of all kernel threads. They work for everybody, so nobody is to blame."""
FORWARDERS = frozenset(
    ("docker-proxy", "rootlessport", "slirp4netns", "pasta", "pasta.avx2", "conmon", "wslrelay.exe", "gvproxy")
)
"""Programs that listen on a port for a container, whose own processes are elsewhere."""
BRIDGES = ("docker", "br-", "podman", "cni", "virbr", "lxc", "incusbr")
"""What the interfaces begin with behind which the containers and virtual machines of this machine are."""
EAGER_S = 5.0
"""So long each look for backends is a real one, because a router may connect with the first requests only."""
LOOK_EVERY_S = 5.0
"""The time between looks for backends from then on: one takes 10 to 30 ms of CPU time."""
HOPS_MAX = 4
"""A router before a router before an engine, and one to spare."""


class Task(NamedTuple):
    """A process: its parent, session, start, and CPU time and that of its ended children, in ticks."""

    parent: int
    program: str
    session: int
    began: int
    cpu: int
    reaped: int


class Processors(NamedTuple):
    """Ticks that so many CPUs were busy, and those that the hypervisor gave to others."""

    cpus: int
    busy: int
    stolen: int


def read_tasks(proc: Path = PROC) -> dict[int, Task]:
    """Return all processes that this user may see, by pid."""
    found: dict[int, Task] = {}
    for name in os.listdir(proc):  # noqa: PTH208 - twice a second, for every process
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"{proc}/{name}/stat", "rb") as file:  # noqa: PTH123
            head, _, tail = file.read().rpartition(b")")
            one = tail.split()
            # proc_pid_stat(5): the fields from the third on
            found[int(name)] = Task(
                parent=int(one[1]),
                program=shown_name(head.partition(b"(")[2]),
                session=int(one[3]),
                began=int(one[19]),
                cpu=int(one[11]) + int(one[12]),
                reaped=int(one[13]) + int(one[14]),
            )
    return found


def shown_name(raw: bytes) -> str:
    """Return the name of a program without what a terminal or a label would take for something else."""
    text = raw.decode("utf-8", errors="replace")
    return "".join(one if one.isprintable() and one not in '"\\' else "?" for one in text) or "?"


def read_processors(usable: Collection[int], proc: Path = PROC) -> Processors | None:
    """Return what the usable CPUs did so far, without interrupts; None where the kernel does not say."""
    count = busy = stolen = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "stat").read_bytes().splitlines():
            one = line.split()
            if one and one[0].startswith(b"cpu") and one[0][3:].isdigit() and int(one[0][3:]) in usable:
                count += 1
                # proc_stat(5): user nice system idle iowait irq softirq steal
                busy += sum(map(int, one[1:4]))
                stolen += int(one[8]) if len(one) > 8 else 0
    return Processors(count, busy, stolen) if count and busy else None


@dataclass
class CpuUse:
    """Who used the CPUs between two looks. `look` returns cores by reading and label, and nothing the first time."""

    engine: int | None = None
    backends: frozenset[int] = frozenset()
    proc: Path = PROC
    own: int = field(default_factory=os.getpid)
    usable: frozenset[int] = field(default_factory=usable_cpus)
    ticks_s: float = field(default_factory=lambda: float(os.sysconf("SC_CLK_TCK")))
    _tasks: dict[int, Task] = field(default_factory=dict)
    _processors: Processors | None = None
    _ours: set[tuple[int, int]] = field(default_factory=set)
    _at_s: float | None = None

    def look(self, now_s: float) -> dict[tuple[str, str], float]:
        """Return the cores used since the last look: {(reading, labels): cores}."""
        tasks, processors = read_tasks(self.proc), read_processors(self.usable, self.proc)
        before, before_processors, at_s = self._tasks, self._processors, self._at_s
        if at_s is not None and now_s - at_s < INTERVAL_S_MIN:
            return {}
        self._tasks, self._processors, self._at_s = tasks, processors, now_s
        ours = self._own_tasks(tasks)
        if at_s is None:
            return {}
        per_core = (now_s - at_s) * self.ticks_s
        most = per_core * (processors.cpus if processors else os.cpu_count() or 1)
        used = {pid: min(ticks, most) / per_core for pid, ticks in used_ticks(before, tasks).items()}
        own = sum(cores for pid, cores in used.items() if pid in ours)
        kernel = sum(cores for pid, cores in used.items() if KERNEL in (pid, tasks[pid].parent))
        foreign = {pid: used[pid] for pid in used if pid not in ours and KERNEL not in (pid, tasks[pid].parent)}
        found = {("own_cores", ""): own}
        total = sum(foreign.values())
        if processors is not None and before_processors is not None:
            room = max(0.0, (processors.busy - before_processors.busy) / per_core - own - kernel)
            if total > room and len(self.usable) < (os.cpu_count() or 1):
                # they may run on CPUs that the load does not use
                foreign = {pid: cores * room / total for pid, cores in foreign.items()}
            found["unseen_cores", ""] = max(0.0, room - total)
            found["steal_cores", ""] = max(0, processors.stolen - before_processors.stolen) / per_core
        named = {pid: cores for pid, cores in foreign.items() if cores >= CORES_MIN}
        for pid, cores in named.items():
            found["foreign_cores", f'pid="{pid}",program="{tasks[pid].program}"'] = cores
        found["foreign_cores", ""] = sum(foreign.values()) - sum(named.values())
        found["others_cores", ""] = sum(foreign.values()) + found.get(("unseen_cores", ""), 0.0)
        return found

    def _own_tasks(self, tasks: Mapping[int, Task]) -> set[int]:
        """Return the processes of servebench and the engine: their trees, and the sessions that they began, without those of
        other engines that servebench has started."""
        engine = {self.engine, *self.backends}
        guards = {pid for pid, task in tasks.items() if task.parent == self.own and task.session == pid}
        guarding = {one for pid in engine if pid is not None for one in _line_of(pid, tasks)} & guards
        others = guards - guarding if guarding else set()
        roots = {self.own, *engine}
        roots |= {pid for pid, task in tasks.items() if (pid, task.began) in self._ours}
        ours: set[int] = set()
        # the second time all leaders of sessions are known
        for pid in (*tasks, *tasks):
            line = list(_line_of(pid, tasks))
            for place, one in enumerate(line):
                if one in others:
                    break
                if one in ours or one in roots or (tasks[one].session in ours and tasks[one].session != one):
                    ours.update(line[: place + 1])
                    break
        self._ours = {(pid, tasks[pid].began) for pid in ours}
        return ours


def _line_of(pid: int, tasks: Mapping[int, Task]) -> Iterator[int]:
    seen: set[int] = set()
    while pid in tasks and pid not in seen:
        seen.add(pid)
        yield pid
        pid = tasks[pid].parent


def used_ticks(before: Mapping[int, Task], now: Mapping[int, Task]) -> dict[int, int]:
    """Return the ticks that each living process used between two looks, with those of children that came and went. A parent gets
    the time of its children when they end: what was seen of them before is taken off."""
    same = {pid for pid, task in now.items() if pid in before and before[pid].began == task.began}
    known: dict[int, int] = {}
    for pid, task in before.items():
        if pid not in same:
            heir = next((one for one in _line_of(task.parent, before) if one in same), None)
            if heir is not None:
                known[heir] = known.get(heir, 0) + task.cpu + task.reaped
    used = {}
    for pid, task in now.items():
        cpu, reaped = (before[pid].cpu, before[pid].reaped) if pid in same else (0, 0)
        used[pid] = max(0, task.cpu - cpu) + max(0, task.reaped - reaped - known.get(pid, 0))
    return used


def others_now(
    use: CpuUse,
    *,
    stolen: bool = True,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Look for half a second; return what others take of the CPUs and who they are, None if that is not much. `stolen`: other
    virtual machines count, too."""
    if not use.proc.is_dir():
        return None
    use.look(now())
    sleep(INTERVAL_S)
    taken: dict[str, float] = {}
    for (name, labels), cores in use.look(now()).items():
        who = {"steal_cores": "other virtual machines", "unseen_cores": "processes that cannot be seen"}.get(name)
        if name == "foreign_cores":
            pid, _, program = labels.removeprefix('pid="').removesuffix('"').partition('",program="')
            who = f"{program} (pid {pid})" if pid else "small processes"
        if who is not None and cores > 0 and (stolen or name != "steal_cores"):
            taken[who] = cores
    total = sum(taken.values())
    if total < BUSY_SHARE * len(use.usable):
        return None
    first = sorted(taken, key=lambda who: -taken[who])[:NAMED_MAX]
    names = ", ".join(f"{who} {taken[who]:.1f}" for who in first if taken[who] >= BUSY_CORES_MIN)
    return f"{total:.1f} of {len(use.usable)} cores" + (f" ({names})" if names else "")


@dataclass
class Backends:
    """The processes that an attached server's process sends its work to, as far as they run on this machine."""

    front: int
    own: int = field(default_factory=os.getpid)
    _ports: dict[int, int] = field(default_factory=dict)
    found: set[int] = field(default_factory=set)
    _began_s: float | None = None
    _looked_s: float = 0.0

    def look(self, now_s: float) -> frozenset[int]:
        """Return the pids found so far: listeners on this machine that the server, or one of them, has a connection to."""
        if self._began_s is None:
            self._began_s = now_s
        elif now_s - self._began_s > EAGER_S and now_s - self._looked_s < LOOK_EVERY_S:
            return frozenset(self.found)
        self._looked_s = now_s
        for _ in range(HOPS_MAX):
            known = {self.front, *self.found}
            ports = connected_ports(known)
            if not ports <= self._ports.keys():
                # ports of other machines have no listener here: 0, so that they are asked for once
                self._ports |= dict.fromkeys(ports, 0) | {port: pid for port, pid in listeners() if pid}
            self.found |= {pid for port in ports if (pid := self._ports[port])} - {self.own, self.front}
            if self.found <= known:
                break
        return frozenset(self.found)


def connected_ports(pids: Iterable[int]) -> set[int]:
    """Return the remote ports of connections that these processes, or their children, opened to this machine's own address."""
    ports: set[int] = set()
    for pid in pids:
        sockets: list[Any] = []
        for process in process_tree(pid):
            with contextlib.suppress(psutil.Error, OSError):
                sockets += process.net_connections("tcp")
        listening = {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}
        ports |= {
            one.raddr.port
            for one in sockets
            if one.status == psutil.CONN_ESTABLISHED
            and one.raddr
            and one.raddr.ip == one.laddr.ip
            and one.laddr.port not in listening
        }
    return ports


class MachineSource(TelemetrySource):
    """Samples this machine while load runs. Of other processes it keeps name and pid, never their arguments.

    Of an attached server on this machine the servers behind it count as the engine, too (`backends`).
    An engine on another machine is not seen: then these readings are about the client's machine only.
    """

    name = "machine"
    interval_s = INTERVAL_S

    def __init__(self, subject: Subject, proc: Path = PROC, cpus: Path = CPUS) -> None:
        """Keep the subject; `open` finds the engine's process."""
        super().__init__(subject)
        self._proc, self._cpus = proc, cpus
        self._use: CpuUse | None = None
        self._backends: Backends | None = None
        self._last: dict[str, tuple[float, float]] = {}

    def open(self) -> str | None:
        """Find the engine's process. Without it nothing could tell the engine from others."""
        if not (self._proc / "self" / "stat").exists():
            return "this system has no /proc"
        pid, reason = engine_pid(self.subject.running)
        if reason is None:
            self._use = CpuUse(engine=pid, backends=frozenset(self.subject.running.pids), proc=self._proc)
            if pid is not None and self.subject.running.pid is None:
                self._backends = Backends(pid)
        return reason

    def sample(self) -> dict[tuple[str, str], float]:
        """Return the readings by name and labels."""
        assert self._use is not None
        now_s = time.monotonic()
        if self._backends is not None:
            self._use.backends = self._backends.look(now_s)
        found = {
            ("machine_cores", "" if self._use.engine else CLIENT_ONLY): float(len(self._use.usable)),
            **self._use.look(now_s),
        }
        for name, counted in self._counters().items():
            at_s, before = self._last.get(name, (now_s, counted))
            self._last[name] = now_s, counted
            if name == "cpu_throttles":
                found[name, ""] = max(0.0, counted - before)
            elif now_s > at_s:
                found[name, ""] = min(1.0, max(0.0, counted - before) / (now_s - at_s))
        clocks = [clock for cpu in self._read_cpus() if (clock := _number(cpu / "cpufreq" / "scaling_cur_freq"))]
        if clocks:
            found["cpu_mhz", ""] = sum(clocks) / len(clocks) / 1e3
        return found

    def _counters(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for kind in ("cpu", "memory", "io"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                line = (self._proc / "pressure" / kind).read_text().splitlines()[0]
                found[f"{kind}_pressure"] = int(line.rpartition("total=")[2]) / 1e6
        counts = [_number(cpu / "thermal_throttle" / "core_throttle_count") for cpu in self._read_cpus()]
        if any(count is not None for count in counts):
            found["cpu_throttles"] = sum(count or 0.0 for count in counts)
        return found

    def _read_cpus(self) -> list[Path]:
        assert self._use is not None
        return [self._cpus / f"cpu{number}" for number in sorted(self._use.usable)[:CPUS_READ_MAX]]

    def readings(self, t_ns: int, sample: Mapping[tuple[str, str], float]) -> Sequence[Reading]:
        """Return one reading for each value."""
        each = (common_readings(t_ns, self.name, {name: value}, labels) for (name, labels), value in sample.items())
        return [one for found in each for one in found]


def _number(path: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text())
    return None


def engine_pid(running: RunningEngine) -> tuple[int | None, str | None]:
    """Return the engine's process, None for an engine on another machine; and why it is unknown, if it is."""
    return (running.pid, None) if running.pid is not None else listener_pid(running.root_url)


def listener_pid(address: str) -> tuple[int | None, str | None]:
    """Return the process that listens at the address of a server, None for one on another machine; and why it is unknown, if it
    is."""
    url = urlsplit(address)
    place = _place_of(url.hostname or "")
    if place == "elsewhere":
        return None, None
    unknown = "the engine runs on this machine, but its processes are unknown"
    if place == "container":
        return None, unknown
    port = url.port or (443 if url.scheme == "https" else 80)
    pid = next((pid for at, pid in listeners() if at == port and pid), None)
    with contextlib.suppress(psutil.Error, OSError):
        if pid is not None and psutil.Process(pid).name() not in FORWARDERS:
            return pid, None
    return None, unknown


def _place_of(host: str) -> str:
    """Return where a host is: `here`, in a `container` on this machine, or `elsewhere`."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return "elsewhere"
    for address in map(str, addresses):
        with contextlib.suppress(ValueError):
            one = ipaddress.ip_address(address.partition("%")[0])
            if one.is_loopback or one.is_unspecified:
                return "here"
            for name, interfaces in psutil.net_if_addrs().items():
                for interface in interfaces:
                    if interface.address.partition("%")[0] == str(one):
                        return "here"
                    if interface.netmask and name.startswith(BRIDGES) and interface.family == socket.AF_INET:
                        network = ipaddress.ip_network(f"{interface.address}/{interface.netmask}", strict=False)
                        if one in network:
                            return "container"
    return "elsewhere"
