"""Whether two engines say the same at temperature 0, and whether they differ by more than each differs from itself.

The same weights give the same answers only as far as the arithmetic is the same: kernels, batch sizes and number formats
round differently, and one rounding may change a word and all that follow. So an engine under load is compared with itself
alone first, and that is the measure for what two engines may differ by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal

from servebench.analysis.agreement import ALPHA, compare
from servebench.util.proportions import wilson

if TYPE_CHECKING:
    import pandas as pd

BENCHMARK = "parity"

ParityFinding = Literal["the same", "no more than itself", "more than itself", "too small to tell"]


@dataclass(frozen=True, kw_only=True)
class Said:
    """One answer: its text, and where the engine told them its tokens with their log-probabilities."""

    text: str
    tokens: tuple[str, ...] | None = None
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Twice:
    """One prompt's answers of one engine: alone, and under load (None where that one failed)."""

    alone: Said
    loaded: Said | None


@dataclass(frozen=True, kw_only=True)
class TextDifference:
    """How two sets of answers to the same prompts differ.

    `first` are the places at which the answers that are not equal part, counted in tokens of the first set (in words
    where one has none), sorted. `logprob_gap_mean` and `logprob_gap_max` are of |difference| of the log-probabilities of
    the tokens before that place, None where they are not known for both.
    """

    n: int
    equal: int
    unit: Literal["tokens", "words"]
    first: tuple[int, ...]
    logprob_gap_mean: float | None
    logprob_gap_max: float | None

    @property
    def share(self) -> float | None:
        """The share of equal answers, from 0 to 1."""
        return self.equal / self.n if self.n else None

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval (Wilson)."""
        return wilson(self.equal, self.n)


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Two runs' answers to the same prompts. `across`: both alone. `own_first` and `own_second`: each run alone against
    itself under load. `finding` compares `across` with the less steady run of the two, prompt by prompt."""

    at: str
    across: TextDifference
    own_first: TextDifference
    own_second: TextDifference
    finding: ParityFinding
    p_value: float
    n_needed: int | None
    sentence: str


def difference(pairs: Sequence[tuple[Said, Said]]) -> TextDifference:
    """How the second of each pair differs from the first."""
    places: list[int] = []
    gaps: list[float] = []
    known = all(_spelt(first) for first, _ in pairs)
    for first, second in pairs:
        if first.text != second.text:
            places.append(_place(first, second.text, in_tokens=known))
        gaps += _gaps(first, second)
    return TextDifference(
        n=len(pairs),
        equal=len(pairs) - len(places),
        unit="tokens" if known else "words",
        first=tuple(sorted(places)),
        logprob_gap_mean=fmean(gaps) if gaps else None,
        logprob_gap_max=max(gaps) if gaps else None,
    )


def parity(
    first: Mapping[str, Twice], second: Mapping[str, Twice], *, at: str = "", alpha: float = ALPHA
) -> Parity | None:
    """Two runs by the keys of their prompts; only those that both answered, alone and under load, count. None without any.

    More than itself: McNemar's exact test (score.agreement.compare) of, for each prompt, whether the two runs agree
    against whether the less steady of them agrees with itself.
    """
    keys = [key for key in first if key in second and first[key].loaded is not None and second[key].loaded is not None]
    if not keys:
        return None
    across = difference([(first[key].alone, second[key].alone) for key in keys])
    own = [difference([_own(run[key]) for key in keys]) for run in (first, second)]
    shaky = first if own[0].equal <= own[1].equal else second
    tested = compare(
        {key: first[key].alone.text == second[key].alone.text for key in keys},
        {key: len({one.text for one in _own(shaky[key])}) == 1 for key in keys},
        alpha=alpha,
    )
    less = (tested.first_share or 0.0) < (tested.second_share or 0.0)
    finding: ParityFinding
    if across.equal == across.n:
        finding = "the same"
    elif tested.finding == "different":
        finding = "more than itself" if less else "no more than itself"
    else:
        finding = "no more than itself" if tested.finding == "not different" or not less else "too small to tell"
    return Parity(
        at=at,
        across=across,
        own_first=own[0],
        own_second=own[1],
        finding=finding,
        p_value=tested.p_value,
        n_needed=tested.n_needed if finding == "too small to tell" else None,
        sentence=_sentence(finding, across, own, tested.p_value, tested.n_needed),
    )


def parities(first: pd.DataFrame, second: pd.DataFrame) -> list[Parity]:
    """Two runs' quality tables: a result for each concurrency at which both answered the same prompts.

    With several, alpha is divided by their number (Bonferroni).
    """
    mine, theirs = _blocks(first), _blocks(second)
    shared = [level for level in mine if level in theirs]
    found = [
        parity(mine[level], theirs[level], at=f"concurrency {level}", alpha=ALPHA / len(shared)) for level in shared
    ]
    return [one for one in found if one is not None]


def _blocks(frame: pd.DataFrame) -> dict[int, dict[str, Twice]]:
    found: dict[int, dict[str, Twice]] = {}
    if frame.empty:
        return found
    own = frame[(frame["benchmark"] == BENCHMARK) & (frame["outcome"] == "ok")]
    for row in own.to_dict("records"):
        detail = json.loads(row["detail"]) if isinstance(row["detail"], str) else {}
        loaded = row["extracted"]
        block = found.setdefault(int(row["concurrency"]), {})
        block[f"{row['item_id']} {row['item_digest']}"] = Twice(
            alone=_said(row["answer"], detail.get("alone")),
            loaded=_said(loaded, detail.get("loaded")) if isinstance(loaded, str) else None,
        )
    return found


def _said(text: str, kept: Any) -> Said:
    told = kept if isinstance(kept, Mapping) else {}
    tokens, logprobs = told.get("tokens"), told.get("logprobs")
    return Said(
        text=text,
        tokens=None if tokens is None else tuple(tokens),
        logprobs=None if logprobs is None else tuple(logprobs),
    )


def _own(one: Twice) -> tuple[Said, Said]:
    assert one.loaded is not None
    return one.alone, one.loaded


def _spelt(said: Said) -> bool:
    """Whether the tokens are those of the text: an engine may leave a stop token in them, or spell bytes its own way."""
    return said.tokens is not None and "".join(said.tokens).startswith(said.text)


def _place(first: Said, other: str, *, in_tokens: bool) -> int:
    """How many tokens (or words) of the first answer are the same before the answers part."""
    shared = 0
    for a, b in zip(first.text, other, strict=False):
        if a != b:
            break
        shared += 1
    if not in_tokens:
        return len(first.text[:shared].split())
    reached = 0
    for place, token in enumerate(first.tokens or ()):
        reached += len(token)
        if reached > shared:
            return place
    return len(first.tokens or ())


def _gaps(first: Said, second: Said) -> list[float]:
    """|difference| of the log-probabilities of the tokens that both said, up to where they part."""
    if None in (first.tokens, second.tokens, first.logprobs, second.logprobs):
        return []
    found = []
    both = zip(first.tokens or (), second.tokens or (), first.logprobs or (), second.logprobs or (), strict=False)
    for a, b, p, q in both:
        if a != b:
            break
        if isfinite(p) and isfinite(q):
            found.append(abs(p - q))
    return found


def _sentence(
    finding: ParityFinding, across: TextDifference, own: Sequence[TextDifference], p_value: float, n_needed: int | None
) -> str:
    low, high = across.interval
    said = f"{100 * (across.share or 0):.1f} % of {across.n} answers are the same [{100 * low:.1f}, {100 * high:.1f}]"
    if across.first:
        said += f", the others part after {across.first[0]} {across.unit} or more (median {median(across.first):g})"
    if across.logprob_gap_mean is not None:
        said += f"; log-probabilities differ by {across.logprob_gap_mean:.2g} in the mean, {across.logprob_gap_max:.2g} at most"
    steady = " and ".join(f"{100 * (one.share or 0):.1f} %" for one in own)
    said += f"; of each run alone and under load {steady} are the same"
    words = {
        "the same": "they say the same",
        "no more than itself": "the runs differ no more than one of them differs from itself under load",
        "more than itself": "the runs differ by more than either differs from itself under load",
        "too small to tell": "too few prompts to tell whether they differ by more than one differs from itself under load",
    }[finding]
    tail = f"; about {n_needed} prompts would be needed" if finding == "too small to tell" and n_needed else ""
    return f"{words}: {said} (p = {p_value:.2g}){tail}"
