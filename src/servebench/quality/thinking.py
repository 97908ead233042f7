"""What scorers grade of an answer with thinking: the only place that decides it."""

from dataclasses import replace

from servebench.contracts.quality import ItemAnswer
from servebench.util.thinking import split_thinking

ENDED_INSIDE = "the answer ended inside its thinking"


def answer_to_grade(answer: ItemAnswer, *, cut: bool = True) -> ItemAnswer:
    """Return an answer with the text that is graded, and `thinking`, which says how that was found.

    With `cut` this is what follows the thinking, and an answer that ends inside its thinking has an error: it counts as not
    answered. Otherwise it is thinking and answer as one text.
    """
    if answer.error is not None or answer.thinking is not None:
        return answer
    thinking, rest = split_thinking(answer.text, answer.reasoning)
    if rest is None and answer.calls:
        rest = ""
    if rest is not None and not thinking.strip():
        return replace(answer, text=rest) if cut else answer
    if not cut:
        return replace(answer, text=answer.reasoning + answer.text, thinking="graded")
    if rest is None:
        return replace(answer, text="", reasoning=thinking, thinking="unfinished", error=ENDED_INSIDE)
    return replace(answer, text=rest, reasoning=thinking, thinking="cut")
