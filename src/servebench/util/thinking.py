"""The thinking of reasoning models inside the text of an answer, where a server does not send it apart."""

MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""What thinking stands between: Qwen, DeepSeek and most others, Mistral, and Seed-OSS, by their chat templates."""


def split_thinking(text: str, reasoning: str = "") -> tuple[str, str | None]:
    """Return the thinking of an answer ("" if there is none), and what follows it: None where the answer ends inside its
    thinking.

    `reasoning` is what the server sent apart from the text. Some chat templates put the first mark into the prompt: then the
    text has the last one only.
    """
    if reasoning.strip():
        return reasoning, text if text.strip() else None
    stripped = text.lstrip()
    for begin, end in MARKS:
        before, found, after = stripped.partition(end)
        if before.startswith(begin):
            return before.removeprefix(begin), after.lstrip() if found else None
        if found and begin not in before:
            return before, after.lstrip()
    return "", text
