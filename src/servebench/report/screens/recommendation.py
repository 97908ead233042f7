"""Who is best for each use."""

from collections.abc import Iterator, Sequence

from servebench.analysis.recommendation.model import Recommendation
from servebench.report.blocks import Block, Gap, Heading, Line
from servebench.report.wording.recommendation import (
    UNNAMED,
    best_word,
    brief_headline,
    headline,
    lead_text,
    place_text,
    quality_text,
    reason_text,
    score_text,
    value_text,
)

TONES = {
    "clear": "good",
    "provisional": "warn",
    "no clear difference": "warn",
    "different settings": "warn",
    "one start each": "same",
    "only one": "same",
    "none qualifies": "warn",
    "not measured": "dim",
}
RUNNERS_UP = 3


def recommendation_blocks(
    found: Sequence[Recommendation], *, verbose: bool = True, hint: bool = True
) -> Iterator[Block]:
    """Yield who is best for each use; with `verbose` each ranking, uses that were not measured, what is missing and what would
    change the answers. `hint` says that -v adds these."""
    if not verbose:
        yield from _brief(found)
        if hint:
            yield Line.of("why, what is missing and what would change the answers: -v", tone="dim")
        return
    for one in found:
        yield Heading(one.use_case.title, f"({one.group})" if one.group else "")
        yield Line.of(headline(one), tone=TONES[one.trust], indent=2)
        for rank, score in enumerate(one.ranking[: 1 + RUNNERS_UP], start=1):
            text = f"{rank}. {score.entrant.name}: {score_text(score, one.use_case.unit)} {place_text(score)}"
            yield Line.of(text.rstrip(), indent=2)
        yield from (Line.of(f"but: {quality_text(other)}", tone="warn", indent=2) for other in one.quality)
        yield from (
            Line.of(f"not ranked: {other.name}: {reason_text(other.why)}", tone="dim", indent=2)
            for other in one.missing
        )
        yield from (Line.of(f"the answer may change: {reason_text(other)}", indent=2) for other in one.changes)
        yield Gap()


def _brief(found: Sequence[Recommendation]) -> Iterator[Block]:
    unmeasured = [one.use_case.title for one in found if one.outcome == "not measured"]
    measured = [one for one in found if one.outcome != "not measured"]
    parts = [one.group.split(" · ") for one in measured]
    shared = [part for part in (parts[0] if len(parts) > 1 else ()) if all(part in own for own in parts)]
    if shared:
        yield Line.of(" · ".join(shared), tone="dim")
    for one, own in zip(measured, parts, strict=True):
        yield Heading(one.use_case.title, " · ".join(part for part in own if part not in shared))
        yield Line.of(brief_headline(one), tone=TONES[one.trust], indent=2)
        rest = ", then ".join(value_text(score, one) for score in one.ranking[1 : 1 + RUNNERS_UP])
        lead = lead_text(one) if one.outcome != "one start each" else ""
        if rest and one.outcome in UNNAMED:
            ahead = f" ({lead})" if best_word(one) else ""
            yield Line.of(f"{value_text(one.ranking[0], one)}{ahead}, then {rest}", tone="dim", indent=2)
        elif rest:
            text = f"{lead}; then {rest}" if lead else f"then {rest}"
            yield Line.of(text, tone="" if lead else "dim", indent=2)
        yield from (Line.of(f"but: {quality_text(other)}", tone="warn", indent=2) for other in one.quality)
    if unmeasured:
        yield Line.of(f"not measured: {', '.join(unmeasured)}", tone="dim")
