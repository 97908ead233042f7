"""Parity: whether two engines give the same answers at temperature 0, and differ no more than each differs from itself.

The same weights give the same answers only as far as the arithmetic is the same: kernels, batch sizes and number formats
round differently, and one rounding may change a word and everything after it. So an engine under load is compared with
itself alone first, and that is the yardstick for the difference between two engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from servebench.analysis.quality.paired import ALPHA, compare_answers
from servebench.contracts.stored import mapping
from servebench.util.bounded_file import json_object
from servebench.util.proportions import wilson

if TYPE_CHECKING:
    import pandas as pd

BENCHMARK = "parity"

ParityFinding = Literal["the same", "no more than itself", "more than itself", "too small to tell"]


@dataclass(frozen=True, kw_only=True)
class AnswerText:
    """An answer's text, with its tokens and their log-probabilities where the engine sent them."""

    text: str
    tokens: tuple[str, ...] | None = None
    logprobs: tuple[float, ...] | None = None


AnswerPair = tuple[AnswerText, AnswerText]
"""One engine's answers to a prompt: alone, and under load."""


@dataclass(frozen=True, kw_only=True)
class TextDifference:
    """How two sets of answers to the same prompts differ.

    `first` are the sorted positions at which unequal answers diverge, in tokens of the first set (in words where one has
    none). `logprob_gap_mean` and `logprob_gap_max` are of |difference| of the log-probabilities of the tokens before that
    position, None where they are not known for both.
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
        """The 95% interval of the share (Wilson)."""
        return wilson(self.equal, self.n)


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Two runs' answers to the same prompts. `across` compares both runs alone, `own_first` and `own_second` each run alone
    with itself under load. `finding` compares `across` with the less steady run, prompt by prompt."""

    at: str
    across: TextDifference
    own_first: TextDifference
    own_second: TextDifference
    finding: ParityFinding
    p_value: float
    n_needed: int | None


def text_difference(pairs: Sequence[tuple[AnswerText, AnswerText]]) -> TextDifference:
    """Return how the second of each pair differs from the first."""
    # an engine may keep a stop token in its tokens, or spell bytes its own way
    in_tokens = all(a.tokens is not None and "".join(a.tokens).startswith(a.text) for a, _ in pairs)
    positions = sorted(_divergence(a, b.text, in_tokens=in_tokens) for a, b in pairs if a.text != b.text)
    gaps = [gap for pair in pairs for gap in _logprob_gaps(*pair)]
    return TextDifference(
        n=len(pairs),
        equal=len(pairs) - len(positions),
        unit="tokens" if in_tokens else "words",
        first=tuple(positions),
        logprob_gap_mean=fmean(gaps) if gaps else None,
        logprob_gap_max=max(gaps) if gaps else None,
    )


def compare_parity(
    first: Mapping[str, AnswerPair], second: Mapping[str, AnswerPair], *, at: str = "", alpha: float = ALPHA
) -> Parity | None:
    """Compare two runs by the keys of their prompts; None where no prompt was answered by both, alone and under load.

    The test is McNemar's (`paired.compare_answers`): for each prompt, whether the two runs agree against whether the less
    steady of them agrees with itself.
    """
    keys = [key for key in first if key in second]
    if not keys:
        return None
    across = text_difference([(first[key][0], second[key][0]) for key in keys])
    own = [text_difference([run[key] for key in keys]) for run in (first, second)]
    less_steady = first if own[0].equal <= own[1].equal else second
    tested = compare_answers(
        {key: first[key][0].text == second[key][0].text for key in keys},
        {key: less_steady[key][0].text == less_steady[key][1].text for key in keys},
        alpha=alpha,
    )
    less_equal = (tested.first_share or 0.0) < (tested.second_share or 0.0)
    finding: ParityFinding
    if across.equal == across.n:
        finding = "the same"
    elif tested.finding == "different":
        finding = "more than itself" if less_equal else "no more than itself"
    else:
        finding = "no more than itself" if tested.finding == "not different" or not less_equal else "too small to tell"
    needed = tested.n_needed if finding == "too small to tell" else None
    return Parity(
        at=at, across=across, own_first=own[0], own_second=own[1], finding=finding, p_value=tested.p_value,
        n_needed=needed,
    )  # fmt: skip


def parities(first: pd.DataFrame, second: pd.DataFrame) -> list[Parity]:
    """Compare two runs' quality tables at each concurrency at which both answered the same prompts.

    With several, alpha is divided by their number (Bonferroni).
    """
    ours, theirs = _answers_by_level(first), _answers_by_level(second)
    shared = [level for level in ours if level in theirs]
    found = [
        compare_parity(ours[level], theirs[level], at=f"concurrency {level}", alpha=ALPHA / len(shared))
        for level in shared
    ]
    return [parity for parity in found if parity is not None]


def _answers_by_level(frame: pd.DataFrame) -> dict[int, dict[str, AnswerPair]]:
    found: dict[int, dict[str, AnswerPair]] = {}
    if frame.empty:
        return found
    own = frame[(frame["benchmark"] == BENCHMARK) & (frame["outcome"] == "ok")]
    for row in own.to_dict("records"):
        detail, pairs = json_object(row["detail"]), found.setdefault(int(row["concurrency"]), {})
        # without a text the request under load failed
        if isinstance(row["extracted"], str):
            loaded = _answer_text(row["extracted"], detail.get("loaded"))
            pairs[f"{row['item_id']} {row['item_digest']}"] = _answer_text(row["answer"], detail.get("alone")), loaded
    return found


def _answer_text(text: str, kept: Any) -> AnswerText:
    known = (mapping(kept).get(name) for name in ("tokens", "logprobs"))
    tokens, logprobs = (None if one is None else tuple(one) for one in known)
    return AnswerText(text=text, tokens=tokens, logprobs=logprobs)


def _divergence(first: AnswerText, other: str, *, in_tokens: bool) -> int:
    """Return how many tokens (or words) of the first answer are the same before the answers diverge."""
    shared = "".join(a for a, _ in takewhile(lambda both: both[0] == both[1], zip(first.text, other, strict=False)))
    if not in_tokens:
        return len(shared.split())
    return sum(end <= len(shared) for end in accumulate(map(len, first.tokens or ())))


def _logprob_gaps(first: AnswerText, second: AnswerText) -> list[float]:
    """Return |difference| of the log-probabilities of the shared tokens, up to where the answers diverge."""
    if None in (first.tokens, second.tokens, first.logprobs, second.logprobs):
        return []
    both = zip(first.tokens or (), second.tokens or (), first.logprobs or (), second.logprobs or (), strict=False)
    shared = takewhile(lambda one: one[0] == one[1], both)
    return [abs(p - q) for _, _, p, q in shared if isfinite(p) and isfinite(q)]
