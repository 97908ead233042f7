"""The ledger of a run: planned = sent + not sent, sent = ok + failed, stored = recorded. A mismatch fails the run.

Requests that only kept a level while the measured ones ended (`fillers`) are counted apart.

Pure functions that compare the load's own counts with the records made and the rows stored.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from servebench.contracts.exchange import PhaseReport
from servebench.contracts.results import Record

Key = tuple[str, bool]
"""A phase: the point's name, and whether it is its warm-up."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The counts of one phase. `sent` is the load's own count, `recorded` the number of sent requests with a record."""

    point: str
    warmup: bool
    planned: int
    sent: int
    recorded: int
    ok: int
    failed: Mapping[str, int]
    fillers: int = 0

    def as_dict(self, stored: int) -> dict[str, object]:
        """Return the entry for the manifest; `stored` is the number of rows on disk."""
        counts: dict[str, object] = asdict(self)
        del counts["recorded"]
        return {**counts, "not_sent": self.planned - self.sent, "stored": stored}


def entry(point: str, report: PhaseReport, records: Sequence[Record], *, warmup: bool) -> Entry:
    """Return the entry of a phase. A request whose connection was refused counts as sent.

    For a worker that died or was killed only its last count is known, and its records may be ahead of that.
    """
    own = [record for record in records if not record.filler]
    outcomes: Counter[str] = Counter(record.outcome for record in own)
    ok = outcomes.pop("ok", 0)
    recorded = sum(record.sent_ns is not None for record in own)
    return Entry(
        point=point,
        warmup=warmup,
        planned=report.planned,
        sent=report.sent if report.error is None else max(report.sent, recorded),
        recorded=recorded,
        ok=ok,
        failed=dict(outcomes),
        fillers=len(records) - len(own),
    )


def faults(entries: Sequence[Entry], stored: Mapping[Key, int]) -> list[str]:
    """Return one line for each count that does not match. `stored` holds the number of rows on disk by phase."""
    lines = []
    for one in entries:
        where = f"{one.point}{' (warm-up)' if one.warmup else ''}"
        records = one.ok + sum(one.failed.values())
        if one.recorded != one.sent:
            lines.append(f"{where}: {one.sent} requests were sent, but {one.recorded} of them have a record")
        if records > one.planned:
            lines.append(f"{where}: {one.planned} requests were planned, but {records} have a record")
        on_disk = stored.get((one.point, one.warmup), 0)
        if on_disk != records + one.fillers:
            lines.append(f"{where}: {records + one.fillers} records were made, but {on_disk} are stored")
    return lines
