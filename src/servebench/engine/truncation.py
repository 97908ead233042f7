"""Cut a text to a number of tokens, by counts."""

from collections.abc import Sequence

PARALLEL = 8
"""Counts that are made at once."""


class ExactTokenizer:
    """Truncate by bisection over characters: token counts grow with the text, except for a token or two at the cut."""

    exact = True

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text."""
        raise NotImplementedError

    def truncate(self, text: str, tokens: int) -> str:
        """Return the longest prefix of at most this many tokens, with few counts."""
        if self.count([text])[0] <= tokens:
            return text
        low, high = 0, len(text)
        while high - low > 1:
            step = max(1, (high - low) // PARALLEL)
            cuts = list(range(low + step, high, step))
            counts = self.count([text[:cut] for cut in cuts])
            fitting = [cut for cut, count in zip(cuts, counts, strict=True) if count <= tokens]
            low = max(fitting, default=low)
            high = min((cut for cut in cuts if cut > low), default=high)
        return text[:low]
