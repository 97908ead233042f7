"""Evidence over starts of the engine: the start is the unit, because requests of one start share its speed."""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from servebench.analysis.estimate import student
from servebench.analysis.quantiles import Mixture
from servebench.analysis.start_model import SLOW_SIDES, StartModel, Starts
from servebench.analysis.verdict.families import AskedPair
from servebench.analysis.verdict.model import (
    FAILED,
    THROUGHPUT,
    ComparedPoint,
    ComparisonRow,
    Difference,
    Metric,
    Side,
    StartValues,
)
from servebench.analysis.verdict.reasons import Method, MethodKind
from servebench.analysis.verdict.slices import enough_starts, freedom_of, values_and_errors
from servebench.contracts.estimate import CONFIDENCE, Z_95
from servebench.contracts.level import Level
from servebench.util.arrays import Floats
from servebench.util.groups import grouped

STARTS_MIN = 2
"""Starts on each side from which on a comparison gives a verdict: the fewest that show a spread."""
EARLIER_MIN = 5
"""Earlier starts of the set-ups from which on they count for single starts, which are tested then, too."""

FEW_STARTS: Mapping[int, float] = {2: 3.0, 3: 2.0, 4: 1.75, 5: 1.25}
"""By which factor p-values of few starts are larger where nothing earlier is known: they hardly show how much starts differ, and
starts that differ by 3 to 5% would be called different too often (6 to 9% of equal engines with two each)."""
FEW_PAIRS: Mapping[int, float] = {2: 1.5, 3: 1.75, 4: 1.5, 5: 1.25}
"""The same at a look at pairs that took turns slice by slice: its level is stricter, and the pairs lack what the machine did. Two
equal engines whose starts differ by 5% are called different in 4.2 and 5.5% of 600 drawn studies (four levels, slices that
scatter by 5 and 3%); with 1.5, 1.25 and 1 for three to five pairs in 5.7 and 6.3%."""
SINGLE = 3.0
"""The same for single starts by earlier ones: a few earlier starts rarely have a slow one among them even where one of twelve is
slow, and then a single slow start looks like another engine (8% of equal llama.cpp in `decided`; with the factor 4.7%)."""
PAIRED_SHARE_MIN = 0.9
PAIRS_MIN = 4
"""Starts of each side from which on those that sent the same requests may be compared in pairs: fewer say too little."""
PAIRED_ERROR = 0.125
"""About what is left of the errors of points in the difference of a pair: most of them is due to which requests were sent."""
HIGH = 0.9
ONE_SD = 0.8413
"""The share of a normal distribution below one standard deviation."""

Points = Sequence[ComparedPoint]


def group_by_start(points: Points) -> list[list[ComparedPoint]]:
    """Return the points of a level by start of the engine, in the order of their repeats."""
    return list(grouped(sorted(points, key=lambda one: one.row.repeat), lambda one: one.row.start_id).values())


def same_requests(ours: Sequence[Points], theirs: Sequence[Points]) -> bool:
    """Return whether both sides sent the same requests in each start: nearly all ids of the
    shorter point are shared, with the same sizes (with `load.until` points differ in length)."""
    if [len(one) for one in ours] != [len(one) for one in theirs]:
        return False
    return all(_share_requests(a, b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))


def _share_requests(a: ComparedPoint, b: ComparedPoint) -> bool:
    sizes = dict(zip(b.request_ids, b.sizes, strict=True))
    shared = [(size, sizes[name]) for name, size in zip(a.request_ids, a.sizes, strict=True) if name in sizes]
    fewer = min(len(a.request_ids), len(b.request_ids))
    return len(shared) >= PAIRED_SHARE_MIN * fewer and all(x == y for x, y in shared)


@dataclass(frozen=True)
class OverStarts:
    """Evidence of the starts of two engines, by the model of starts: of one level, or of a mean over levels (`weights`).

    `paired`: the model is that of the differences between starts that sent the same requests, or took turns slice by slice.
    """

    model: StartModel
    weights: Floats
    method: Method
    paired: bool = False

    @property
    def mixture(self) -> Mixture:
        """What is known of the difference of the logarithms."""
        return self.model.value(self.weights) if self.paired else self.model.value(-self.weights, self.weights)

    @property
    def sd(self) -> float:
        """The error of the difference of the logarithms: half of the interval that one standard deviation each way holds."""
        known = self.mixture
        return (known.quantile(ONE_SD) - known.quantile(1 - ONE_SD)) / 2

    @property
    def in_pairs(self) -> "OverStarts":
        """The evidence by the differences of paired starts, which leave out what their requests share, where it knows more."""
        a, b = self.model.engines
        differences = Starts(a.levels, b.values - a.values, PAIRED_ERROR * np.hypot(a.errors, b.errors))
        method = replace(self.method, earlier=0)
        found = OverStarts(StartModel((differences,)), self.weights, method, paired=True)
        ours, theirs = (one.mixture.quantile(HIGH) - one.mixture.quantile(1 - HIGH) for one in (found, self))
        return found if ours < theirs else self

    def by_slices(self, differences: Starts, earlier: Iterable[Starts] = ()) -> "OverStarts":
        """Return the evidence by the differences of starts that took turns slice by slice. Where `earlier` ones of such are known
        they say how much starts differ: values of starts also have in them what the machine did meanwhile."""
        known = [own for one in earlier if (own := one.at(differences.levels)).values.size]
        model, method = replace(self.model, engines=(differences,)), replace(self.method, slice_by_slice=True)
        if known:
            model = replace(model, earlier=known)
            method = replace(method, earlier=sum(len(one.values) for one in known))
        return replace(self, model=model, method=method, paired=True)

    def difference(self, confidence: float = CONFIDENCE) -> Difference:
        """Return the difference of the engines."""
        known, tail = self.mixture, (1 - confidence) / 2
        effect, low, high = (float(np.expm1(known.quantile(share))) for share in (0.5, tail, 1 - tail))
        return Difference(effect=effect, low=low, high=high, p=known.p, method=self.method)


def evidence_of(
    a: Starts, b: Starts, metric: str, earlier: Iterable[Starts] = (), kind: MethodKind = MethodKind.STARTS
) -> OverStarts:
    """Return the evidence of the starts of a baseline and a candidate, of the mean over their levels."""
    known = [one for each in earlier if (one := each.at(a.levels)).values.size]
    if max(len(a.values), len(b.values)) < STARTS_MIN and sum(len(one.values) for one in known) < EARLIER_MIN:
        # a few earlier starts that happen to agree would make single ones look like two engines
        known = []
    model = StartModel((a, b), known, SLOW_SIDES.get(metric, 0))
    method = Method(kind, (len(a.values), len(b.values)), sum(len(one.values) for one in known))
    return OverStarts(model, np.full(len(a.levels), 1 / len(a.levels)), method)


@dataclass(frozen=True)
class StartComparison:
    """The rows of a pair of runs that rest on starts, with what the model of starts says of them; of the first `count` starts, if
    it is given."""

    rows: Sequence[ComparisonRow]
    baseline: Side
    candidate: Side
    count: int | None = None
    kind: MethodKind = MethodKind.STARTS

    def with_differences(self, confidence: float = CONFIDENCE) -> list[ComparisonRow]:
        """Return the rows with their differences, and with a p-value where starts suffice for a verdict."""
        return [self._with_difference(row, self._evidence.get(row.metric), confidence) for row in self.rows]

    def asked(self, first: float | None, rows: Sequence[ComparisonRow], without: Collection[Metric] = ()) -> AskedPair:
        """Return the p-values of the first question, of these rows, and of the mean over levels of each metric. Nothing is asked
        of the metrics `without`."""
        means = {
            metric.name: self.given(row, evidence).p
            for metric, evidence in self._evidence.items()
            if (row := next((one for one in rows if one.metric is metric), None)) is not None
        }
        return AskedPair(first, [(row.metric.name, None if row.metric in without else row.p) for row in rows], means)

    def first_question(self) -> tuple[ComparisonRow, OverStarts] | None:
        """Return the row of the mean throughput over all levels, of those that compete if some do, with its evidence; None
        where there is none."""
        own = self._by_metric().get(THROUGHPUT, [])
        counted = [row for row in own if row.competes] or own
        if not counted:
            return None
        evidence = self._evidence_of(counted)
        values = [_mean([row.baseline for row in counted]), _mean([row.candidate for row in counted])]
        widest = max(counted, key=self._widened)
        doubts = tuple(dict.fromkeys(code for row in counted for code in row.doubts))
        row = replace(
            counted[0], level=Level(), overall=True, baseline=values[0], candidate=values[1],
            competes=all(one.competes for one in counted), doubts=doubts, widened=widest.widened,
        )  # fmt: skip
        return self.given(row, evidence), evidence

    def given(self, row: ComparisonRow, evidence: OverStarts, confidence: float = CONFIDENCE) -> ComparisonRow:
        """Return a row with the difference that evidence gives, wider by what warnings of a known size may account for."""
        found = evidence.difference(confidence).widened(self._widened(row))
        # a start that was killed goes on in another life of the engine, which shows no more than the start would have
        ours, theirs = (min(one, self.count or sys.maxsize) for one in found.method.starts)
        found = replace(found, method=replace(found.method, starts=(ours, theirs)))
        fewest, p = min(ours, theirs), found.p
        if p is not None and found.method.earlier >= EARLIER_MIN:
            p = min(1.0, p * (SINGLE if fewest < STARTS_MIN else 1.0))
        elif p is not None:
            pairs = found.method.slice_by_slice and self.kind is MethodKind.LOOKS
            p = None if fewest < STARTS_MIN else min(1.0, p * (FEW_PAIRS if pairs else FEW_STARTS).get(fewest, 1.0))
        return replace(row, difference=replace(found, p=p))

    def _by_metric(self) -> Mapping[Metric, list[ComparisonRow]]:
        known = (row for row in self.rows if row.starts is not None and row.starts.finite)
        return grouped((row for row in known if row.metric is not FAILED), lambda row: row.metric)

    @cached_property
    def _evidence(self) -> Mapping[Metric, OverStarts]:
        return {metric: self._evidence_of(own) for metric, own in self._by_metric().items()}

    def _evidence_of(self, rows: Sequence[ComparisonRow]) -> OverStarts:
        values = [row.starts if self.count is None else row.starts.first(self.count) for row in rows if row.starts]
        levels, metric = tuple(row.level for row in rows), rows[0].metric.name
        earlier: list[Starts] = []
        for side in (self.baseline, self.candidate):
            one = side.earlier.get(metric)
            # both sides may have the same set-up, and so the same earlier starts
            if one is not None and not any(
                np.array_equal(one.values, known.values, equal_nan=True) for known in earlier
            ):
                earlier.append(one)
        a, b = (_matrix(levels, values, number) for number in (0, 1))
        found = evidence_of(a, b, metric, earlier, self.kind)
        in_slices = enough_starts(one.slice_differences for one in values)
        if in_slices and all(one.baseline.size == one.candidate.size for one in values):
            return found.by_slices(_differences(levels, values), self.baseline.in_turns.get(metric, ()))
        # what requests share moves latencies; the throughput hardly
        paired = (
            rows[0].metric.percent is not None
            and all(one.paired for one in values)
            and a.values.shape == b.values.shape
        )
        return found.in_pairs if paired and len(a.values) >= PAIRS_MIN else found

    def _with_difference(self, row: ComparisonRow, evidence: OverStarts | None, confidence: float) -> ComparisonRow:
        values = row.starts
        if evidence is None or values is None or not values.finite:
            return row
        if self.count is not None:
            values = values.first(self.count)
        weights = np.array([float(level == row.level) for level in evidence.model.engines[0].levels])
        method = replace(evidence.method, starts=(values.baseline.size, values.candidate.size))
        return self.given(row, replace(evidence, weights=weights, method=method), confidence)

    def _widened(self, row: ComparisonRow) -> float:
        if not row.widened:
            return 0.0
        if self.count is None or row.starts is None:
            return row.widened[-1]
        return row.widened[max(min(row.starts.first(self.count).fewest, len(row.widened)), 1) - 1]


def _mean(values: Iterable[float | None]) -> float:
    return float(np.exp(np.mean(np.log([one for one in values if one]))))


def _differences(levels: Sequence[Level], values: Sequence[StartValues]) -> Starts:
    """The differences of starts at the same place by pair and level. What was not measured in turns counts as its points say,
    with their errors."""
    names = [list(zip(*(one.side(number) for number in (0, 1)), strict=True)) for one in values]
    rows = {pair: number for number, pair in enumerate(dict.fromkeys(pair for own in names for pair in own))}
    table, errors = np.full((len(rows), len(levels)), np.nan), np.zeros((len(rows), len(levels)))
    for column, (one, own) in enumerate(zip(values, names, strict=True)):
        at = [rows[pair] for pair in own], column
        table[at], errors[at] = one.candidate - one.baseline, float(np.hypot(*one.error))
        if one.slice_differences:
            elsewhere = [each for other in values if other is not one for each in other.slice_differences if each]
            table[at], errors[at] = values_and_errors(one.slice_differences, table[at], errors[at][0], elsewhere)
    freedom = freedom_of(each for one in values for each in one.slice_differences)
    return Starts(tuple(levels), table, errors, differences=True, freedom=freedom)


def _matrix(levels: Sequence[Level], values: Sequence[StartValues], number: int) -> Starts:
    """The values of a side (0 or 1) by start and level."""
    sides = [one.side(number) for one in values]
    names = dict.fromkeys(name for side in sides for name in side)
    table = np.array([[side.get(name, np.nan) for side in sides] for name in names])
    return Starts(tuple(levels), table, np.array([one.error[number] for one in values]))


def failed_difference(shares: StartValues, least_error: float) -> Difference:
    """Return the difference between shares of failed requests, over the starts of each side if there are several (Welch 1947).

    `least_error` is the smallest standard error that is believed: few starts may agree by chance. Single starts test nothing.
    """
    from scipy.special import stdtr

    a, b = shares.baseline, shares.candidate
    effect, method = float(b.mean() - a.mean()), Method(MethodKind.FAILED_SHARES, (a.size, b.size))
    if shares.fewest < STARTS_MIN:
        half = Z_95 * least_error
        return Difference(effect=effect, low=effect - half, high=effect + half, method=method)
    squares = [float(side.var(ddof=1)) / side.size for side in (a, b)]
    parts = sum(square**2 / (side.size - 1) for square, side in zip(squares, (a, b), strict=True))
    freedom = sum(squares) ** 2 / parts if parts > 0 else float(shares.fewest - 1)
    error = max(sum(squares) ** 0.5, least_error, np.finfo(float).tiny)
    half = error * student(freedom)
    p = float(2 * stdtr(freedom, -abs(effect) / error))
    return Difference(effect=effect, low=effect - half, high=effect + half, p=p, method=method)
