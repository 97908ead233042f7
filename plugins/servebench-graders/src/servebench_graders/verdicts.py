"""Read the verdicts in a judge's replies and grade answers by them."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from servebench.plugin import Grade, ItemAnswer, in_one_line

REPLY_CHARACTERS_MAX = 1 << 16
"""What is read of a reply: its end, where the verdict is."""
Place = Literal["first", "second", "tie"]


def score_of(text: str, scale: int) -> int | None:
    """Return the score in a reply: from its JSON, else a number after `score`; None unless it is from 1 to `scale`."""
    score = _number_in(text, "score", r'score"?\W{0,4}(\d{1,9})')
    return score if score is not None and 1 <= score <= scale else None


def better_of(text: str) -> Place | None:
    """Return the answer that a reply prefers; None unless it says 1, 2 or 0."""
    number = _number_in(text, "better", r'better"?\W{0,4}(\d{1,9})')
    return None if number is None else {1: "first", 2: "second", 0: "tie"}.get(number)  # type: ignore[return-value]


def _number_in(text: str, key: str, pattern: str) -> int | None:
    value: Any = next((one[key] for one in reversed(_objects(text)) if key in one), None)
    if value is None:
        matches = re.findall(pattern, text[-REPLY_CHARACTERS_MAX:], re.IGNORECASE)
        value = matches[-1] if matches else None
    if isinstance(value, str) and re.fullmatch(r"\s*+\d{1,9}\s*+", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        return None
    return int(value)


def absolute_grade(replies: Sequence[ItemAnswer], text: str, scale: int) -> Grade:
    """Grade by the mean of both scores, from 0 (1 of `scale`) to 1; none if a score is missing."""
    scores = [None if one.error else score_of(one.text, scale) for one in replies]
    judge = _judge_detail(replies, scores)
    known = [score for score in scores if score is not None]
    if len(known) < len(replies):
        return Grade(correct=None, extracted=None, note=_why_no_verdict(replies, scores), detail=judge)
    detail = {"grades": known, "judge_agrees": len(set(known)) == 1, **judge}
    score = (sum(known) / len(known) - 1) / (scale - 1)
    return Grade(correct=None, extracted=text, score=score, note=_reason(replies[0].text), detail=detail)


def pairwise_grade(replies: Sequence[ItemAnswer], text: str) -> Grade:
    """Grade 1 if the answer is preferred in both orders, 0 if the reference is, else 0.5; none if a verdict is missing.
    The second reply has the two answers in reverse order."""
    places = [None if one.error else better_of(one.text) for one in replies]
    judge = _judge_detail(replies, places)
    if None in places:
        return Grade(correct=None, extracted=None, note=_why_no_verdict(replies, places), detail=judge)
    ours = [_preference(place, swapped=order == 1) for order, place in enumerate(places)]
    agrees = ours[0] == ours[1]
    detail = {
        "preferred": [str(place) for place in places],
        "judge_agrees": agrees,
        "first_place_wins": sum(place == "first" for place in places) / len(places),
        **judge,
    }
    score = ours[0] if agrees else 0.5
    return Grade(correct=None, extracted=text, score=score, note=_reason(replies[0].text), detail=detail)


def _preference(place: Place | None, *, swapped: bool) -> float:
    if place == "tie":
        return 0.5
    return float((place == "first") != swapped)


def _judge_detail(replies: Sequence[ItemAnswer], read: Sequence[object | None]) -> dict[str, Any]:
    """Return the tokens and the outcome of the calls."""
    outcomes = [
        (one.thinking or one.outcome) if one.error else ("ok" if known is not None else "nonsense")
        for one, known in zip(replies, read, strict=True)
    ]
    return {
        "judge_outcome": next((one for one in outcomes if one != "ok"), "ok"),
        "judge_input_tokens": sum(one.prompt_tokens or 0 for one in replies),
        "judge_output_tokens": sum(one.output_tokens or 0 for one in replies),
    }


def _why_no_verdict(replies: Sequence[ItemAnswer], read: Sequence[object | None]) -> str:
    for one, known in zip(replies, read, strict=True):
        if one.error:
            return f"no verdict: {one.error}"
        if known is None:
            return f"no verdict in the judge's reply: {in_one_line(one.text, 80) or 'empty'}"
    raise AssertionError("every reply was read")


def _reason(text: str) -> str | None:
    reasons = (one.get("reason") for one in _objects(text))
    return next((in_one_line(one, 200) for one in reasons if isinstance(one, str) and one.strip()), None)


def _objects(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects in a reply that contain no other object."""
    found = []
    for piece in re.findall(r"\{[^{}]*+\}", text[-REPLY_CHARACTERS_MAX:]):
        with suppress(ValueError):
            found.append(json.loads(piece))
    return found
