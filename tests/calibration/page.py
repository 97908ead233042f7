"""The page of a calibration: a summary of each promise, from the stored parts; all rows are in the CSV beside it."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from calibration.cells import Line, Promise, Verdict
from servebench.report.export.markdown import table

HEAD = """# How often the conclusions are right

Written by `make calibrate`; do not edit. **What is assumed**: simulated engines
([`launch=simulated`](emulated.md#simulated-engines)) whose truth is known. Unless a cell says otherwise, the speed of an engine
wanders by 2% over 5 s, its steps vary by 3%, and starts differ as the cell says, normally distributed. Real engines have slow
starts and other noise: what is kept here may be broken there ([proof.md](proof.md) counts it), and what is broken here is broken.

*met*: the whole 95% interval keeps the promise (Wilson's of a share, Student's of a bias, of a width that of the standard
deviation that it is divided by); *not met*: the whole interval breaks it; *open*: only more repetitions can tell.

Each part has the commit that gave it and says nothing of later changes: `make calibrate` measures the parts that are missing or
of another commit, `make calibrate PART=aa` one of them.

**{met} of {all} rows are met, {open} are open, {unmet} are not met**, {silent} have no data. All rows are in [{csv}]({csv}).
"""
FORMS = {"share": "{:.1%}", "bias": "{:+.1%}", "width": "{:.1f}"}
VERDICTS: tuple[Verdict, ...] = ("met", "open", "not met", "no data")


@dataclass(frozen=True, kw_only=True)
class CalibrationPart:
    """The rows of one promise, with the commit, date, seed and repetitions that gave them; `complete` if none is missing."""

    name: str
    commit: str
    date: str
    seed: int
    repetitions: int
    lines: tuple[Line, ...] = field(default=())
    complete: bool = False

    def write(self, folder: Path) -> None:
        """Store it in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        facts = {name: value for name, value in asdict(self).items() if name != "lines"}
        facts["promises"] = [asdict(one) for one in dict.fromkeys(line.promise for line in self.lines)]
        # a row on each line, so that a difference between two commits can be read
        rows = [[line.promise.name, *(getattr(line, name) for name in LINE)] for line in self.lines]
        text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        head = json.dumps(facts, ensure_ascii=False).removesuffix("}")
        (folder / f"{self.name}.json").write_text(f'{head}, "lines": [\n{text}\n]}}\n', encoding="utf-8")


LINE = ("cell", "trials", "measured", "low", "high", "silent")


def read_parts(folder: Path) -> list[CalibrationPart]:
    """Return the parts that a folder has."""
    found = []
    for path in sorted(folder.glob("*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        promises = {one["name"]: Promise(**one) for one in stored.pop("promises")}
        rows = [(promises[name], dict(zip(LINE, values, strict=True))) for name, *values in stored.pop("lines")]
        found.append(CalibrationPart(**stored, lines=tuple(Line(promise=promise, **facts) for promise, facts in rows)))
    return found


def page(parts: Sequence[CalibrationPart], csv_name: str = "calibration.csv") -> str:
    """Return the page as Markdown."""
    found = [line.verdict for part in parts for line in part.lines]
    counts = {name: found.count(one) for name, one in zip(("met", "open", "unmet", "silent"), VERDICTS, strict=True)}
    head = HEAD.format(**counts, all=len(found), csv=csv_name)
    rows, made = [], defaultdict[str, list[str]](list)
    for part in parts:
        made[f"{part.commit} ({part.date})"].append(part.name + " (not complete)" * (not part.complete))
        for promise in dict.fromkeys(line.promise for line in part.lines):
            own = [line.verdict for line in part.lines if line.promise == promise]
            counted = "/".join(str(own.count(one)) for one in VERDICTS)
            rows.append([promise.name, promise.text, bar_text(promise), counted])
    measured = "\n".join(f"- {commit}: {', '.join(names)}" for commit, names in made.items())
    columns = ["promise", "text", "bar", "/".join(VERDICTS)]
    return "\n".join([head, *table(columns, rows, left=(0, 1), escaped=True), "", "Commits:", "", measured, ""])


def rows_csv(parts: Sequence[CalibrationPart]) -> str:
    """Return all rows of all parts as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    facts = [
        "promise",
        "cell",
        "repetitions",
        "silent",
        "measured",
        "low",
        "high",
        "bar",
        "verdict",
        "commit",
        "date",
        "seed",
    ]
    writer.writerow(facts)
    for part in parts:
        for line in part.lines:
            values = ["" if one is None else f"{one:.5g}" for one in (line.measured, line.low, line.high)]
            writer.writerow([line.promise.name, line.cell, line.trials, line.silent, *values, bar_text(line.promise),
                             line.verdict, part.commit, part.date, part.seed])  # fmt: skip
    return out.getvalue()


def measured_text(line: Line) -> str:
    """Return what was measured, in the form of its promise; "-" without data."""
    return "-" if line.measured is None else FORMS[line.promise.kind].format(line.measured)


def bar_text(promise: Promise) -> str:
    """Return the bar of a promise with its direction."""
    sign = "±" if promise.kind == "bias" else "≤ " if promise.at_most else "≥ "
    return f"{sign}{promise.bar:g}" if promise.kind == "width" else f"{sign}{promise.bar:.0%}"
