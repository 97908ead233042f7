"""Arrival times of recorded services, read from the formats in which such traces are published."""

import math
from pathlib import Path

from servebench.contracts.settings import LoadSettings
from servebench.util.bounded_file import open_regular, suffix_of
from servebench.util.bounded_parquet import read_parquet
from servebench.util.errors import ConfigError, reason_of
from servebench.util.trace_files import SUFFIXES, read_recorded
from servebench.util.units import NS_PER_S

FORMATS = (
    "a Mooncake .jsonl (timestamp in ms), a Bailian .jsonl or a BurstGPT .csv (in s), an Azure .csv (TIMESTAMP as a date), "
    "or a requests.parquet of servebench"
)


def trace_errors(load: LoadSettings) -> list[str]:
    """Return why the trace file cannot be used."""
    if load.replay is None or load.replay.path is None:
        return []
    path = Path(load.replay.path).expanduser()
    if suffix_of(path) not in (*SUFFIXES, ".parquet"):
        return [f"load.replay.path={load.replay.path}: unknown file type; use {FORMATS}"]
    if not path.is_file():
        return [f"load.replay.path={load.replay.path}: no such file; use {FORMATS}"]
    try:
        read_arrivals(load.replay.path, load.replay.point)
    except ConfigError as error:
        return list(error.faults)
    return []


def read_arrivals(name: str, point: str | None = None) -> list[float]:
    """Return arrival times in seconds from the first, in ascending order. `point` selects one of a requests.parquet. Raises
    ConfigError for a file that is missing, of another type, or without an arrival."""
    path = Path(name).expanduser()
    if path.suffix.lower() == ".parquet":
        times = _read_requests_parquet(path, name, point)
    else:
        times = [one.arrival_s for one in read_recorded(name, "load.replay.path", FORMATS)]
    finite = sorted(time_s for time_s in times if math.isfinite(time_s))
    if not finite:
        raise ConfigError(f"load.replay.path={name} contains no arrivals; use {FORMATS}")
    return [time_s - finite[0] for time_s in finite]


def _read_requests_parquet(path: Path, name: str, point: str | None) -> list[float]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # not in files of older versions
        with open_regular(path) as file:
            filler = ["filler"] if "filler" in pq.read_schema(file).names else []
        table = read_parquet(path, columns=["point", "scheduled_ns", "warmup", *filler])
    except OSError as error:
        raise ConfigError(f"load.replay.path={name} cannot be read: {reason_of(error)}; use {FORMATS}") from error
    except (pa.ArrowException, ValueError) as error:
        raise ConfigError(
            f"load.replay.path={name} is not a requests.parquet: {str(error).splitlines()[0]}; use {FORMATS}"
        ) from error
    points: dict[str, list[float]] = {}
    for row in table.to_pylist():
        if not row["warmup"] and not row.get("filler"):
            points.setdefault(row["point"], []).append(row["scheduled_ns"] / NS_PER_S)
    if point is not None and point not in points:
        raise ConfigError(f"load.replay.point={point} is not in {name}; its points: {', '.join(points) or 'none'}")
    if point is None and len(points) > 1:
        raise ConfigError(
            f"load.replay.path={name} has several points: select one with load.replay.point={next(iter(points))}"
        )
    return points[point] if point is not None else next(iter(points.values()), [])
