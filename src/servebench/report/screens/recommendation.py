"""Who is best for each use."""

from collections.abc import Iterator, Sequence

from servebench.analysis.recommendation.model import Recommendation
from servebench.report.blocks import Block, Gap, Heading, Line, Span
from servebench.report.wording import recommendation as wording

SURE_TONES = {"sure": "good", "likely": "warn", "open": ""}
RUNNERS_UP = 3


def recommendation_blocks(
    found: Sequence[Recommendation], *, verbose: bool = True, hint: bool = True
) -> Iterator[Block]:
    """Yield who is best for each use; with `verbose` each ranking, uses that were not measured, what is missing and what would
    change the answers. `hint` says that -v adds these."""
    if not verbose:
        yield from _brief(found, hint=hint)
        return
    for one in found:
        yield Heading(one.use_case.title, f"({one.group})" if one.group else "")
        yield Line.of(wording.use_text(one), tone=SURE_TONES[one.sureness], indent=2)
        if one.ranking and one.outcome != "only one" and (why := wording.reservations_text(one)):
            yield Line.of(why, indent=2)
        for rank, score in enumerate(one.ranking[: 1 + RUNNERS_UP], start=1):
            text = f"{rank}. {score.entrant.name}: {wording.score_text(score, one.use_case.unit)} {wording.place_text(score)}"
            yield Line.of(text.rstrip(), indent=2)
        yield from (Line.of(f"but: {wording.quality_text(other)}", tone="warn", indent=2) for other in one.quality)
        yield from (
            Line.of(f"not ranked: {other.name}: {wording.reason_text(other.why)}", tone="dim", indent=2)
            for other in one.missing
        )
        yield from (Line.of(f"the answer may change: {wording.reason_text(other)}", indent=2) for other in one.changes)
        yield Gap()


def _brief(found: Sequence[Recommendation], *, hint: bool) -> Iterator[Block]:
    """A line for each use that some run has a score for."""
    measured = [one for one in found if one.ranking]
    parts = [one.group.split(" · ") for one in measured]
    shared = [part for part in (parts[0] if len(parts) > 1 else ()) if all(part in own for own in parts)]
    if shared:
        yield Line.of(" · ".join(shared), tone="dim")
    for one, own in zip(measured, parts, strict=True):
        where = " · ".join(part for part in own if part not in shared)
        title = Span(one.use_case.title + (f" ({where})" if where else ""), "strong")
        yield Line.of(title, f": {wording.use_text(one)}{wording.but_text(one)}", tone=SURE_TONES[one.sureness])
        yield from (Line.of(f"but: {wording.quality_text(other)}", tone="warn", indent=2) for other in one.quality)
    yield from map(
        Line.of, dict.fromkeys(wording.reason_text(one.unequal) for one in measured if one.unequal is not None)
    )
    if hint:
        others = len({one.use_case.name for one in found} - {one.use_case.name for one in measured})
        rest = f"no answer for {others} other uses; " if others else ""
        yield Line.of(f"{rest}why, and what would change it: -v", tone="dim")
