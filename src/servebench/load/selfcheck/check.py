"""The self-check: the error of this client on this machine, against a null server in another process. The result is stored in
the cache folder for a day, unless a busy moment has made it bad.

The stages go from low to high load, in one phase of the worker that measures engines. A stage passes when the p99 errors of
TTFT and ITL are below a millisecond. The client is trusted up to the last stage before the first that fails.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import orjson

from servebench import __version__
from servebench.contracts.exchange import (
    ClientFloor,
    Exchange,
    FloorStage,
    PhaseReport,
    PlannedRequest,
    PointPlan,
    StopReason,
    Target,
)
from servebench.load.client.spool import read_spool
from servebench.load.coordinator.drive import drive
from servebench.load.coordinator.worker_process import worker_environment
from servebench.load.selfcheck.null_server import EVENT_BYTES, HEADER
from servebench.util.errors import LoadError
from servebench.util.processes import usable_cpus
from servebench.util.units import NS_PER_MS, NS_PER_S

ERROR_MS_MAX = 1.0
SETTLE_S = 0.15
"""The time between stages, so that one does not overlap the tail of another."""

READY_TIMEOUT_S = 60.0
STAGE_TIMEOUT_S = 20.0
DESCRIPTORS_SPARE = 64
MAX_AGE_S = 24 * 3600.0
FILE_NAME = "self_check.json"
BUSY_MS = 1.0
"""An idle machine is more exact than this at the smallest load that is tested."""


@dataclass(frozen=True)
class Stage:
    """`streams` answers that start within `over_s` seconds, each of `events` chunks `itl_us` apart."""

    streams: int
    itl_us: int
    events: int
    over_s: float

    @property
    def seconds(self) -> float:
        """The planned time from the first request to the last chunk."""
        return self.over_s + self.itl_us * (self.events - 1) / 1e6


STAGES = (
    Stage(streams=50, itl_us=20_000, events=15, over_s=0.1),
    Stage(streams=1000, itl_us=50_000, events=8, over_s=0.15),
    Stage(streams=1000, itl_us=25_000, events=12, over_s=0.15),
    Stage(streams=1000, itl_us=12_500, events=16, over_s=0.15),
)
"""2.5, 20, 40 and 80 thousand events per second where the null server can send them; two seconds in all."""


def self_check(stages: Sequence[Stage] = STAGES) -> ClientFloor:
    """Measure this client on this machine, in about two seconds. Raises LoadError when nothing could be measured."""
    began = time.monotonic()
    streams_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - DESCRIPTORS_SPARE
    stages = [replace(stage, streams=min(stage.streams, streams_max)) for stage in stages]
    with tempfile.TemporaryDirectory(prefix="servebench-") as name:
        folder = Path(name)
        exchanges, report, truth = _drive(folder, stages)
    measured: list[FloorStage] = []
    first = 0
    for stage in stages:
        indexes = range(first, first + stage.streams)
        first += stage.streams
        floor_stage = measure_stage([(exchanges[i], truth[i]) for i in indexes if i in exchanges and i in truth])
        if floor_stage is not None:
            measured.append(floor_stage)
    if not measured:
        raise LoadError("the self-check measured nothing: no answer of the null server was complete")
    return build_floor(measured, report.stamp_source, seconds=time.monotonic() - began)


def build_floor(stages: Sequence[FloorStage], stamp_source: str, *, seconds: float) -> ClientFloor:
    """Return the floor of these stages: trusted up to the one before the first whose error exceeds a millisecond."""
    good: list[FloorStage] = []
    for stage in stages:
        if max(stage.ttft_error_ms, stage.itl_error_ms) > ERROR_MS_MAX:
            break
        good.append(stage)
    return ClientFloor(
        stages=tuple(stages),
        streams=max((stage.streams for stage in good), default=0),
        events_s=max((stage.events_s for stage in good), default=0.0),
        limit_seen=len(good) < len(stages),
        stamp_source=stamp_source,
        measured_s=time.time(),
        seconds=seconds,
    )


def measure_stage(pairs: Sequence[tuple[Exchange, Sequence[int]]]) -> FloorStage | None:
    """Return the errors of a stage; a pair is an exchange and its truth (arrival of the request, then each chunk). Pure."""
    ttft, itl, late, stamps = [], [], [], []
    events = merged = 0
    for exchange, (arrived_ns, *sent) in pairs:
        if exchange.outcome != "complete" or exchange.sent_ns is None:
            continue
        seen, chunks_merged = chunk_stamps(exchange.reads)
        if len(seen) != len(sent):
            continue
        events += len(seen)
        merged += chunks_merged
        stamps += seen
        late.append((exchange.sent_ns - exchange.scheduled_ns) / NS_PER_MS)
        ttft.append(abs((seen[0] - exchange.sent_ns) - (sent[0] - arrived_ns)) / NS_PER_MS)
        gaps = zip(pairwise(seen), pairwise(sent), strict=True)
        itl += [abs((b - a) - (d - c)) / NS_PER_MS for (a, b), (c, d) in gaps]
    if events < 2:
        return None
    return FloorStage(
        streams=len(ttft),
        events_s=events * NS_PER_S / max(max(stamps) - min(stamps), 1),
        ttft_error_ms=_p99(ttft),
        itl_error_ms=_p99(itl),
        lateness_ms=_p99(late),
        merged_share=merged / events,
    )


def chunk_stamps(reads: Sequence[tuple[int, bytes]]) -> tuple[list[int], int]:
    """Return the stamp of each chunk of a null answer (of the read with its last byte), and how many shared a read."""
    stamps: list[int] = []
    received = merged = 0
    for stamp, data in reads:
        received += len(data)
        whole = max(0, received - len(HEADER)) // EVENT_BYTES - len(stamps)
        stamps += [stamp] * whole
        merged += max(0, whole - 1)
    return stamps, merged


def _p99(values: list[float]) -> float:
    """Return the 99th percentile, the higher of two neighbours."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else 0.0


def _plan(stages: Sequence[Stage]) -> PointPlan:
    requests: list[PlannedRequest] = []
    start_s = 0.05
    for stage in stages:
        for number in range(stage.streams):
            index = len(requests)
            requests.append(
                PlannedRequest(
                    request_id=str(index),
                    path=f"/{index}/{stage.itl_us}/{stage.events}",
                    body=b"",
                    scheduled_s=start_s + stage.over_s * number / stage.streams,
                )
            )
        start_s += stage.seconds + SETTLE_S
    return PointPlan(
        requests=requests,
        concurrency=max(stage.streams for stage in stages),
        timeout_s=STAGE_TIMEOUT_S,
        connect_timeout_s=READY_TIMEOUT_S,
        duration_s=start_s,
        drain_s=STAGE_TIMEOUT_S,
    )


def _drive(folder: Path, stages: Sequence[Stage]) -> tuple[dict[int, Exchange], PhaseReport, dict[int, array[int]]]:
    truth_file, spool = folder / "truth", folder / "check.spool"
    spool.touch()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "servebench.load.selfcheck.null_server", str(truth_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=worker_environment(),
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            port = server.stdout.readline()
            if not port:
                code = server.wait(READY_TIMEOUT_S)
                raise LoadError(f"the null server of the self-check ended with exit code {code}")
            target = Target(host="127.0.0.1", port=int(port))
            report = drive(target, _plan(stages), spool=spool, watch=lambda _: None)
            if report.stopped == StopReason.INTERRUPT:
                raise KeyboardInterrupt
            server.stdin.close()
            server.wait(READY_TIMEOUT_S)
        except BaseException:
            server.kill()
            raise
    exchanges = {int(exchange.request_id): exchange for exchange in read_spool(spool)}
    return exchanges, report, read_truth(truth_file.read_bytes())


def read_truth(data: bytes) -> dict[int, array[int]]:
    """Parse the truth file of the null server: the arrival and the chunks of each request, by index."""
    numbers = array("q")
    numbers.frombytes(data)
    truth, position = {}, 0
    while position < len(numbers):
        index, chunks = numbers[position], numbers[position + 1]
        truth[index] = numbers[position + 2 : position + 3 + chunks]
        position += 3 + chunks
    return truth


def machine_key() -> str:
    """Return what a stored result is valid for: this host with these cores, this Python, this servebench."""
    return f"{platform.node()} {platform.machine()} {len(usable_cpus())} {platform.python_version()} {__version__}"


def read_stored_floor(cache: Path, *, now_s: float) -> ClientFloor | None:
    """Return the stored result if it is of this machine and of the last day."""
    try:
        document: dict[str, Any] = orjson.loads((cache / FILE_NAME).read_bytes())
        fields = document["floor"]
        floor = ClientFloor(**(fields | {"stages": tuple(FloorStage(**stage) for stage in fields["stages"])}))
        valid = document["machine"] == machine_key() and 0 <= now_s - floor.measured_s < MAX_AGE_S
        valid = valid and all(max(one.ttft_error_ms, one.itl_error_ms) < BUSY_MS for one in floor.stages[:1])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return floor if valid else None


def store_floor(cache: Path, floor: ClientFloor) -> None:
    """Store a result. Ignores a cache that cannot be written: the next study just measures again, in two seconds."""
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        temporary = cache / f"{FILE_NAME}.{os.getpid()}"
        temporary.write_bytes(orjson.dumps({"machine": machine_key(), "floor": asdict(floor)}))
        temporary.replace(cache / FILE_NAME)


def client_floor(mode: Literal["auto", "always", "never"], cache: Path) -> ClientFloor | None:
    """Return the floor of this machine, stored (`auto`) or measured now; None with `never`. Raises LoadError."""
    if mode == "never":
        return None
    stored = read_stored_floor(cache, now_s=time.time()) if mode == "auto" else None
    return measure_floor(cache) if stored is None else stored


def measure_floor(cache: Path) -> ClientFloor:
    """Measure the floor of this machine now, store it in the cache folder and return it. Raises LoadError."""
    floor = self_check()
    store_floor(cache, floor)
    return floor


def format_floor(floor: ClientFloor) -> list[str]:
    """Return a floor as lines of text."""
    lines = [f"{'streams':>8} {'events/s':>9} {'TTFT error':>11} {'ITL error':>10} {'late':>9} {'merged':>8}"]
    lines += [
        f"{stage.streams:>8} {stage.events_s:>9,.0f} {stage.ttft_error_ms:>8.3f} ms {stage.itl_error_ms:>7.3f} ms "
        f"{stage.lateness_ms:>6.2f} ms {100 * stage.merged_share:>7.2f}%"
        for stage in floor.stages
    ]
    lines.append(
        "errors and lateness are p99 values, against a null server in another process that records the true times"
    )
    if floor.limit_seen:
        limit = f"exact to a millisecond up to {floor.streams} streams and {floor.events_s:,.0f} events/s, not above"
    else:
        limit = f"exact to a millisecond at all tested loads, up to {floor.streams} streams and {floor.events_s:,.0f} events/s"
    lines.append(f"{limit}; {floor.stamp_source} stamps; measured in {floor.seconds:.1f} s")
    return lines
