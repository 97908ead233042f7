"""What the product concludes from parts of the stored starts, and how often that is right.

The rounds of a study are exchangeable: each has a fresh start of each engine. Comparisons of k starts each take k rounds; those
drawn overlap, so their share has the interval of as many comparisons as there are disjoint ones (n // k): a mean over
overlapping subsets of n starts never varies more than one over disjoint subsets (Hoeffding 1948).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import fmean, mean, median, stdev
from typing import TYPE_CHECKING, Any

from proof.studies import SIDES
from servebench.analysis.conclude import Options, conclude
from servebench.analysis.verdict.model import EQUAL, FASTER, MIXED, SLOWER, VerdictKind
from servebench.contracts.level import Level
from servebench.contracts.stored import RunData, StudyData
from servebench.util.proportions import wilson
from servebench.util.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

THROUGHPUT = "output_throughput_tok_s"
LONG_METRICS = (THROUGHPUT, "ttft_ms_p50", "tpot_ms_p50", "e2e_ms_p50")
STARTS = (1, 2, 3, 5, 8)
DRAWS, SEQUENCES = 20, 5
EARLIER, FEW = 10, 3
"""Other starts of `base` that a comparison of FEW starts at most may know of."""
MARGIN = "5%"
"""Within which `study.until=decided` may call engines equal."""
SAID = {FASTER: "faster", SLOWER: "slower", MIXED: "mixed", EQUAL: "equal"}


@dataclass(frozen=True, kw_only=True)
class ProofLine:
    """One question asked many times: `trials` comparisons, worth `independent` ones. `counts` are the shares of what was said:
    faster, slower, mixed, equal, open (for coverage: inside). `starts` and `minutes` of engine time are those of one comparison;
    `earlier` starts were known, `doubtful` points counted."""

    engine: str
    neighbour: str
    question: str
    levels: str
    method: str
    starts: float
    earlier: int = 0
    doubtful: bool = False
    minutes: float = 0.0
    trials: int
    independent: int
    counts: Mapping[str, float]

    def share(self, *said: str) -> tuple[float, float, float]:
        """Return how often one of these was said, with its 95% interval."""
        share = sum(self.counts.get(one, 0.0) for one in said)
        worth = share * self.independent
        low, _ = wilson(math.floor(worth + 1e-9), self.independent)
        _, high = wilson(math.ceil(worth - 1e-9), self.independent)
        return share, low, high


def complete_rounds(runs: Sequence[RunData], levels: Iterable[Level]) -> list[int]:
    """Return the rounds in which each of these runs has a point that is not void at each level."""
    found = [{(row.repeat, row.level) for row in run.point_rows if row.verdict != "void"} for run in runs]
    rounds = {number for own in found for number, _ in own}
    return sorted(one for one in rounds if all((one, level) in own for own in found for level in levels))


def part(run: RunData, rounds: Iterable[int], levels: Iterable[Level], study_id: str = "proof") -> RunData:
    """Return a run that has only the points of these rounds and levels."""
    wanted, at = set(rounds), set(levels)
    rows = [row for row in run.point_rows if row.repeat in wanted and row.level in at]
    points = {row.point for row in rows}

    def tables(name: str, *options: object) -> pd.DataFrame:
        found = run.requests if name == "requests" else run.tables(name, *options)
        return found[found["point"].isin(points)] if "point" in found else found

    return replace(run, study_id=study_id, rows=lambda: rows, tables=tables)


def start_seconds(run: RunData) -> float:
    """Return for how long a start of a run lived on average, from its beginning to the end of its last window; engines that take
    turns slice by slice share it."""
    ends: dict[str, int] = {}
    for row in run.point_rows:
        if row.start_id and row.window_end_ns:
            ends[row.start_id] = max(ends.get(row.start_id, 0), int(row.window_end_ns))
    lived_s = fmean(end / NS_PER_S - datetime.fromisoformat(start).timestamp() for start, end in ends.items())
    return lived_s / (len(SIDES) if any(row.slice_group for row in run.point_rows) else 1)


def draws(rounds: Sequence[int], count: int, rng: random.Random) -> Iterator[list[int]]:
    """Yield sets of `count` rounds, DRAWS at most or all disjoint ones: those of one order after another."""
    drawn: set[frozenset[int]] = set()
    most = max(DRAWS, len(rounds) // count)
    for _ in range(DRAWS):
        order = rng.sample(rounds, len(rounds))
        for at in range(0, len(order) - count + 1, count):
            some = frozenset(order[at : at + count])
            if some not in drawn and len(drawn) < most:
                drawn.add(some)
                yield sorted(some)


def verdict_lines(study: StudyData, engine: str, neighbour: str) -> Iterator[ProofLine]:
    """Yield how often `twin` and `changed` were called different from `base`, by starts and levels."""
    base, *others = study.runs
    every = sorted({row.level for row in base.point_rows})
    for other, question in zip(others, ("equal", "changed"), strict=True):
        if not (base.point_rows and other.point_rows):
            continue
        minutes = (start_seconds(base) + start_seconds(other)) / 60
        for levels in dict.fromkeys((tuple(every), (every[len(every) // 2],))):
            rounds = complete_rounds((base, other), levels)
            of_levels = [row for run in (base, other) for row in run.point_rows if row.level in levels]
            facts: dict[str, Any] = {"engine": engine, "neighbour": neighbour, "question": question}
            facts["levels"] = " ".join(map(str, levels))
            minutes_at = minutes * len(levels) / len(every)
            for doubtful in (False, True) if any(row.verdict == "doubtful" for row in of_levels) else (False,):
                options = Options(with_doubtful=doubtful)
                for count in STARTS:
                    for earlier in (0, EARLIER):
                        if len(rounds) < count + earlier or (earlier and count > FEW):
                            continue
                        said = []
                        for some in draws(rounds, count, random.Random(f"{count}")):
                            rest = [one for one in rounds if one not in some][:earlier]
                            known = [part(base, rest, levels, "earlier")] if earlier else []
                            pair = [part(run, some, levels) for run in (base, other)]
                            said.append(conclude(pair, (), options, earlier=known).comparisons[0].result)
                        yield ProofLine(**facts, method="compare", starts=count, earlier=earlier, doubtful=doubtful,
                                        minutes=count * minutes_at, trials=len(said), independent=len(rounds) // count,
                                        counts=_counts(said))  # fmt: skip
                if len(rounds) >= STARTS[1]:
                    yield _decided_line(base, other, rounds, levels, facts, options, minutes_at)


def _decided_line(
    base: RunData,
    other: RunData,
    rounds: Sequence[int],
    levels: Sequence[Level],
    facts: dict[str, Any],
    options: Options,
    minutes: float,
) -> ProofLine:
    """What `study.until=decided` would have said, and after how many starts, where the rounds had come in random orders."""
    said, starts, rng = [], [], random.Random(0)
    for _ in range(SEQUENCES):
        order = rng.sample(rounds, len(rounds))[: max(STARTS)]
        for count in range(1, len(order) + 1):
            runs = tuple(_as_deciding(part(run, order[:count], levels), order) for run in (base, other))
            study = StudyData(study_id="proof", path=base.path.parent, state={"status": "finished"}, runs=runs)
            found = conclude(runs, [study], options)
            pairs = found.decisions[0].pairs if found.decisions else ()
            if pairs and not pairs[0].open_levels:
                break
        said.append(found.comparisons[0].result)
        starts.append(count)
    used = fmean(starts)
    return ProofLine(**facts, method="decided", starts=used, doubtful=options.with_doubtful, minutes=used * minutes,
                     trials=len(said), independent=max(1, round(len(rounds) / used)), counts=_counts(said))  # fmt: skip


def _as_deciding(run: RunData, order: Sequence[int]) -> RunData:
    """Return a run whose study has `study.until=decided`, with its rounds numbered in this order."""
    config = {**run.config, "study": {"starts": max(STARTS), "until": "decided", "margin": MARGIN, "budget": "10h"}}
    return replace(run, manifest={**run.manifest, "config": config}, rows=lambda: sorted(
        (replace(row, repeat=order.index(row.repeat)) for row in run.point_rows), key=lambda row: row.repeat))  # fmt: skip


def _counts(said: Sequence[VerdictKind]) -> dict[str, float]:
    words = [SAID.get(one, "open") for one in said]
    return {word: words.count(word) / len(words) for word in (*SAID.values(), "open")}


def coverage_lines(study: StudyData, engine: str, neighbour: str) -> Iterator[ProofLine]:
    """Yield how often the intervals of short points held the mean of the other points of their start, by metric."""
    for metric in LONG_METRICS:
        inside: list[bool] = []
        starts: dict[tuple[str | None, Level], list[tuple[float, float | None, float | None]]] = {}
        for row in (row for run in study.runs for row in run.point_rows if row.verdict != "void"):
            if row.get(metric):
                ends = row.get(f"{metric}_low"), row.get(f"{metric}_high")
                starts.setdefault((row.start_id, row.level), []).append((row[metric], *ends))
        for own in starts.values():
            for index, (_, low, high) in enumerate(own):
                others = [math.log(value) for at, (value, *_) in enumerate(own) if at != index]
                if low is not None and high is not None and others:
                    inside.append(low <= math.exp(fmean(others)) <= high)
        if inside:
            yield ProofLine(engine=engine, neighbour=neighbour, question=f"interval of {metric}", method="long run",
                            levels=" ".join(dict.fromkeys(str(level) for _, level in sorted(starts, key=lambda k: k[1]))),
                            starts=1, trials=len(inside), independent=len(inside),
                            counts={"inside": mean(inside)})  # fmt: skip


def spreads(run: RunData) -> str:
    """Return by how much the throughput of the points of a run really varied, and what their intervals allowed for."""
    rows, found = [row for row in run.point_rows if row.verdict != "void"], []
    for level in sorted({row.level for row in rows}):
        own = [row for row in rows if row.level == level]
        logs, lows, highs = (
            [math.log(value) for row in own if (value := row.get(f"{THROUGHPUT}{end}"))]
            for end in ("", "_low", "_high")
        )
        if len(logs) > 1 and lows and len(lows) == len(highs):
            sd, half = stdev(logs), median((high - low) / 2 for low, high in zip(lows, highs, strict=True))
            found.append(f"{level.words} {100 * 1.96 * sd:.0f}% and {100 * half:.0f}%")
    return f"1.96 sd of throughput, and half an interval: {'; '.join(found)}." if found else ""


def planted(base: RunData, changed: RunData) -> dict[Level, tuple[float, float, float]]:
    """Return the change of throughput at each level over all rounds, with its 95% interval (Student's, on logarithms)."""
    from scipy.special import stdtrit

    values = {
        (run is changed, row.repeat, row.level): math.log(row.output_throughput_tok_s)
        for run in (base, changed)
        for row in run.point_rows
        if row.verdict != "void" and row.output_throughput_tok_s
    }
    found = {}
    for level in sorted({row.level for row in base.point_rows}):
        logs = [
            values[True, number, at] - value
            for (other, number, at), value in values.items()
            if not other and at == level and (True, number, at) in values
        ]
        if len(logs) > 1:
            half = float(stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / math.sqrt(len(logs))
            found[level] = tuple(math.expm1(fmean(logs) + move) for move in (0.0, -half, half))
    return found  # type: ignore[return-value]
