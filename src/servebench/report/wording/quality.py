"""The text of comparisons of answers."""

from collections.abc import Mapping
from statistics import median

from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.quality.paired import PairedComparison
from servebench.analysis.quality.parity import Parity, ParityFinding
from servebench.util.figures import percent, percent_interval

PARITY: Mapping[ParityFinding, str] = {
    "the same": "the answers are the same",
    "no more than itself": "the runs differ no more than one of them differs from itself under load",
    "more than itself": "the runs differ more than either differs from itself under load",
    "too small to tell": "not enough prompts to tell whether the runs differ more than one differs from itself under load",
}


def paired_text(found: PairedComparison) -> str:
    """Return whether two runs differ on the same questions."""
    if found.first_share is None or found.second_share is None:
        return f"{found.finding}: both answered {found.n} question{'' if found.n == 1 else 's'}"
    first, second = (f"{one:.3f}" if found.scores else f"{one:.1%}" for one in (found.first_share, found.second_share))
    needed = f"; about {found.n_needed} questions are needed" if found.n_needed else ""
    return f"{found.finding}: {first} vs {second} on {found.n} questions, p = {found.p_value:.2g}{needed}"


def agreement_text(found: Agreement) -> str:
    """Return whether two runs differ on a benchmark, or why they cannot be compared."""
    if found.comparison is not None:
        text = paired_text(found.comparison)
    elif found.methods:
        text = f"not comparable: graded by {' and by '.join(found.methods)}"
    else:
        text = (
            "not comparable: the questions differ: check quality.seed, quality.shots, quality.max_tokens and the data"
        )
    if found.chance is not None:
        text += f"; neither is better than guessing ({found.chance:.0%})"
    return f"{found.benchmark} at {found.at}: {text}"


def parity_text(found: Parity) -> str:
    """Return whether two runs give the same answers, and how steady each is."""
    across = found.across
    equal = f"{percent(across.share)} of {across.n} answers are equal {percent_interval(*across.interval)}"
    parts = [f"{PARITY[found.finding]}: {equal}"]
    if across.first:
        parts[0] += (
            f", the others diverge after {across.first[0]} {across.unit} or more (median {median(across.first):g})"
        )
    if across.logprob_gap_mean is not None:
        parts.append(
            f"log-probabilities differ by {across.logprob_gap_mean:.2g} on average, by {across.logprob_gap_max:.2g} at most"
        )
    steady = " and ".join(percent(one.share) for one in (found.own_first, found.own_second))
    parts.append(f"each run alone and under load: {steady} equal (p = {found.p_value:.2g})")
    if found.n_needed:
        parts.append(f"about {found.n_needed} prompts are needed")
    return "; ".join(parts)
