"""Where the time of requests goes, and what the slowest have in common, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servebench.analysis.slow_tail import TAIL_MIN, SlowStretch, SlowTail, where_time_goes
from servebench.analysis.time_parts import FIRST, REST, SLOW_FROM, TimeParts
from servebench.contracts.stored import RunData
from servebench.util.figures import number, short_percent
from servebench.util.safe_text import clean_line

NOT_REPORTED = "{engine} reports no times of its own: these parts are by the client's stamps."
PART_WORDS = {
    "client": "the client, which sends late",
    "network": "outside of the engine's own times: its front end, or a network",
    "queue": "waiting in the engine's queue",
    FIRST: "before the first token",
    REST: "after the first token",
}
FACTOR_WORDS = {
    "server_queue_ms": "wait {} ms in the engine's queue instead of {}",
    "prompt_tokens": "have prompts of {} tokens instead of {}",
    "cached_tokens": "find {} tokens in the prefix cache instead of {}",
    "output_tokens": "have answers of {} tokens instead of {}",
    "preemptions_per_s": "see {} preemptions/s in the engine instead of {}",
    "prefilling": "are sent when {} other requests have no token yet instead of {}",
    "prefill_tokens": "are sent when others have {} prompt tokens to compute instead of {}",
    "in_flight": "are sent when {} others are in flight instead of {}",
}
"""What is said of the slow requests by the column of a factor, with its medians in them and in the rest."""
FACTORS_NOTE = (
    "More often: the share of pairs of a slow request and another one in which the slow one has more of it (of cached tokens: "
    "less). P-values allow for their number and for requests that share the engine."
)
ALONE = "nothing that is compared tells them from the rest"


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """Where the time of a run's requests goes; `engine` is what its engine is called in a sentence."""

    name: str
    engine: str
    parts: Sequence[TimeParts]
    tails: Sequence[SlowTail]

    @property
    def lines(self) -> list[str]:
        """What TTFT and E2E are, and what the slowest requests have in common, in sentences."""
        return [*parts_lines(self.parts, self.engine), *tail_lines(self.tails)]

    def as_dict(self) -> dict[str, Any]:
        """Return parts and tails as plain data."""
        return {"parts": [one.as_dict() for one in self.parts], "slow_tail": [one.as_dict() for one in self.tails]}


def times_of(run: RunData, name: str) -> RunTimes:
    """Return where the time of a run's requests goes. Raises StoreError."""
    parts, tails = where_time_goes(run)
    return RunTimes(name=name, engine=clean_line(run.fact("engine") or "the engine"), parts=parts, tails=tails)


def parts_lines(found: Sequence[TimeParts], engine: str) -> list[str]:
    """Return what TTFT and E2E of each level are for the most part, a line for each level."""
    lines = []
    for level in dict.fromkeys(one.level for one in found):
        own = [one for one in found if one.level == level and one.group == "all" and one.total_ms > 0]
        shown = [one for one in own if FIRST not in one.parts or one.metric == "E2E"]
        if shares := [f"{one.largest[1]:.0%} of {one.metric} is {_words(one, engine)}" for one in shown]:
            lines.append(f"at {level.words}: {', '.join(shares)}")
    return lines


def _words(one: TimeParts, engine: str) -> str:
    name = one.largest[0]
    if name == "queue":
        return f"waiting in {engine}'s queue"
    if name == "network":
        unknown = "" if "queue" in one.parts else f" ({engine} reports no queue time)"
        return part_title([one], name).replace(", ", " or ") + unknown
    return PART_WORDS.get(name, name)


def part_title(found: Sequence[TimeParts], name: str) -> str:
    """Return what a part of these levels is called."""
    if name != "network":
        return name
    return rest_title(here=all(one.here for one in found), queue=all("queue" in one.parts for one in found))


def rest_title(*, here: bool, queue: bool) -> str:
    """Return what the rest of TTFT is called that an engine does not report: a network where the server is not `here`, the front
    end, and the queue where that is not known."""
    return ", ".join([*([] if here else ["network"]), "front end", *([] if queue else ["queue"])])


def part_text(one: TimeParts, name: str) -> str:
    """Return a part in ms and in percent."""
    share = one.parts[name] / one.total_ms if one.total_ms > 0 else 0.0
    return f"{number(one.parts[name])} ms ({100 * share:.1f}%)"


def bar_name(one: TimeParts) -> str:
    """Return which requests of a level a bar shows."""
    return f"{one.group} {one.n}"


def tail_lines(tails: Sequence[SlowTail]) -> list[str]:
    """Return what the slowest requests of each level have in common, and where there is nothing to compare."""
    none = f"no slow tail (the slowest take less than {TAIL_MIN:g} times the rest)"
    few = f"too few requests for a slow tail (fewer than {SLOW_FROM})"
    lines = [tail_line(one) for one in tails if one.is_tail]
    for reason, own in ((none, [one for one in tails if one.n]), (few, [one for one in tails if not one.n])):
        levels: dict[str, list[str]] = {}
        for one in own:
            if not one.is_tail:
                levels.setdefault(one.metric, []).append(one.level.words)
        if levels:
            lines.append(f"{reason}: " + "; ".join(f"{metric} at {', '.join(at)}" for metric, at in levels.items()))
    return lines


def tail_line(one: SlowTail) -> str:
    """Return in a sentence or two what the slowest requests of a level have in common."""
    times = f"{one.metric} {number(one.slow_ms)} ms, the others {number(one.rest_ms)} ms"
    common = [FACTOR_WORDS[f.kind.column].format(number(f.slow), number(f.rest)) for f in one.common]
    said = [_stretch_words(one, one.stretch)] if one.stretch is not None and one.stretch.found else []
    if one.extra:
        part, share = one.extra
        said.insert(0, f"{min(1.0, share):.0%} of the difference is {PART_WORDS.get(part, part)}")
    return f"at {one.level.words}, the slowest {one.n} of {one.of} ({times}): {'; '.join([*said, *common]) or ALONE}"


def _stretch_words(one: SlowTail, found: SlowStretch) -> str:
    seconds = (found.end_ns - found.start_ns) / 1e9
    share = short_percent(found.requests / one.of, 2)
    why = f" ({'; '.join(clean_line(cause) for cause in found.causes)})" if found.causes else ""
    return (
        f"{found.holds} are sent within {number(seconds)} s, {number(found.start_s)} s after the first request, among {share} of "
        f"all requests, which take {found.slower:.2g} times as long as the others{why}"
    )
