"""The page of a proof: a summary of each engine and state of the machine; all rows are in the CSV beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields

from calibration.cells import judged
from proof.judge import MARGIN, ProofLine
from servebench.contracts.level import Level
from servebench.report.export.markdown import table

WRONG_MAX, HOLDS_MIN = 0.05, 0.90
ANY = ("faster", "slower", "mixed")
FOUND = ("slower", "mixed")

HEAD = """# How often the conclusions are right on real engines

Written by `make proof`; do not edit. Real engines are started again and again, in rounds of three fresh starts: `base`, `twin`
(the same settings) and `changed` (a slower setting), and judged as any runs. `twin` must not be called different; `changed`
should be found.

Comparisons of k starts a side are drawn from the rounds at random and overlap: the 95% interval (Wilson) of a share is that of
the disjoint ones, rounds / k. *met*: the whole interval keeps the bar; *not met*: it breaks it; *open*: more rounds can tell.
All rows, by number of starts, and those with doubtful points (`--with-doubtful`), are in [proof.csv]({csv}).

Minutes are engine time: starts, warm-up and points of both sides. A *long run* has many points of one start: the interval of each
should hold the mean of the others in at least 90%.

`make proof ARGS="--engine llamacpp --engine vllm"` measures 40 rounds on a free and on a busy machine (hours; the same
command goes on). On a GPU machine `tests/proof/gpu.sh WHEELS TOKENIZER` does so in 30 minutes, with random weights and no
network.
"""


@dataclass(frozen=True, kw_only=True)
class ProofPart:
    """A study of the page: what it was measured with, and what came out. `changes` are those of throughput by level that the
    `changed` engine shows over all rounds, `text` says what was measured when, and by which commit."""

    engine: str
    neighbour: str
    text: str
    lines: Sequence[ProofLine] = ()
    changes: dict[Level, tuple[float, float, float]] | None = None


def page(parts: Sequence[ProofPart], csv_name: str = "proof.csv", note: str = "") -> str:
    """Return the page as Markdown; `note` comes before the parts."""
    return "\n".join(
        [HEAD.format(csv=csv_name), *([note, ""] if note else []), *(text for part in parts for text in _section(part))]
    )


def _section(part: ProofPart) -> list[str]:
    lines = [f"## {part.engine}, neighbour: {part.neighbour}", "", part.text, ""]
    if part.changes:
        found = (
            f"{level.words} {one:+.1%} [{low:+.1%}, {high:+.1%}]" for level, (one, low, high) in part.changes.items()
        )
        lines += [f"Throughput of `changed` over all rounds: {'; '.join(found)}.", ""]
    rows = [_cells(line) for line in part.lines if _in_summary(line, part.lines)]
    if not rows:
        return [*lines, "Not enough rounds to judge anything yet.", ""]
    asked_of: tuple[str, ...] = ("question", "users", "judged by", "starts a side", "minutes")
    head = (*asked_of, "share", "95% interval", "bar", "verdict")
    if all(line.method == "long run" for line in part.lines):
        kept = [0, 5, 6, 8]
        head, rows = ("interval of", *(head[at] for at in kept[1:])), [[row[at] for at in kept] for row in rows]
    return [*lines, *table(head, rows, left=(0, 1, 2) if len(head) > 5 else (0,)), ""]


def _in_summary(line: ProofLine, lines: Sequence[ProofLine]) -> bool:
    """Whether it is one of the rows that the page shows, of all levels together: without earlier
    starts: of comparisons those with the most starts that leave four disjoint ones, of equal engines also those of one start."""
    if line.doubtful or len(line.levels) < max(len(one.levels) for one in lines):
        return False
    if line.method != "compare":
        return True
    alike = [one for one in lines if (one.method, one.question, one.levels, one.doubtful, one.earlier) == (
        "compare", line.question, line.levels, False, 0)]  # fmt: skip
    best = max((one for one in alike if one.independent >= 4), key=lambda one: one.starts, default=None)
    fewest = min(alike, key=lambda one: one.starts, default=None)
    return line is best or (line is fewest and line.question == "equal")


def asked(line: ProofLine) -> tuple[str, tuple[float, float, float], float | None, bool]:
    """Return the question of a row in words, its share with the interval, the bar, and whether that is the most."""
    if line.question == "equal":
        return "equal engines called different", line.share(*ANY), WRONG_MAX, True
    if line.question == "changed":
        return "change found", line.share(*FOUND), None, False
    return line.question.removeprefix("interval of "), line.share("inside"), HOLDS_MIN, False


def _cells(line: ProofLine) -> list[str]:
    words, (share, low, high), bar, at_most = asked(line)
    verdict = "" if bar is None else judged(low, high, bar, at_most=at_most)
    sign = "" if bar is None else f"{'≤' if at_most else '≥'} {bar:.0%}"
    method = f"decided within {MARGIN}" if line.method == "decided" else line.method
    return [
        *(words, line.levels, method, f"{line.starts:.3g}"),
        f"{line.minutes:.1f}" if line.minutes else "-",
        *(f"{share:.0%} of {line.trials}", f"{low:.0%} to {high:.0%}", sign, verdict),
    ]


def rows_csv(parts: Sequence[ProofPart]) -> str:
    """Return all rows of all parts as CSV."""
    said = (*ANY, "equal", "open", "inside")
    out = io.StringIO()
    facts = [one.name for one in fields(ProofLine) if one.name != "counts"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*facts, *said, "share", "low", "high", "bar", "verdict"])
    for line in (line for part in parts for line in part.lines):
        _, (share, low, high), bar, at_most = asked(line)
        values = [f"{one:.4g}" if isinstance(one := getattr(line, name), float) else one for name in facts]
        counts = [f"{line.counts[one]:.4g}" if one in line.counts else "" for one in said]
        verdict = "" if bar is None else judged(low, high, bar, at_most=at_most)
        writer.writerow([*values, *counts, *(f"{one:.4g}" for one in (share, low, high)), bar or "", verdict])
    return out.getvalue()
