"""Tokens and answers of the emulated engines: every four characters are one token.

The tokenizer must be cheap (prompts are split on the core that also keeps the schedule), the same for every engine, and
prefix-preserving: texts with a common prefix have the same first tokens. servebench assumes the same four characters per
token for a model without a known tokenizer, so prompts have the requested length.
"""

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

CHARACTERS = 4
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+-"  # pragma: allowlist secret

WORDS = (
    "the model reads a prompt and writes one token after another until it has said enough about what was asked of it "
    "here some plain words stand for an answer so that nobody takes them for one they carry no meaning only their number "
    "and the time at which they come do the rest is filler of a fixed length cut from a loop"
)
MEDIAN_OUTPUT_TOKENS = 180
"""Length of an answer that ends by itself: log-normal with this median and the sigma below, as in chat data sets."""
OUTPUT_SIGMA = 0.7


def count_tokens(text: str) -> int:
    """Return the tokens of a text; at least 1 for a text that is not empty."""
    return -(-len(text) // CHARACTERS)


def render_chat(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a chat as one text, each turn after its role, so that every turn's prompt is a prefix of the next one's."""
    return "".join(f"<{turn.get('role')}>{_content(turn.get('content'))}" for turn in messages) + "<assistant>"


def _content(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


def prompt_key(seed: int, prompt: str) -> int:
    """Return a number that depends only on seed and prompt and is the same in every process."""
    return zlib.crc32(prompt.encode("utf-8", "surrogatepass"), seed & 0xFFFFFFFF)


def answer_pieces(key: int, tokens: int) -> list[str]:
    """Return the tokens of an answer: the same words, starting at a position that depends on the key."""
    loop = WORDS + " "
    offset = key % len(loop)
    needed = tokens * CHARACTERS
    text = (loop[offset:] + loop * (needed // len(loop) + 1))[:needed]
    return [text[start : start + CHARACTERS] for start in range(0, needed, CHARACTERS)]


def natural_length(key: int) -> int:
    """Return the length in tokens of an answer that ends by itself."""
    return max(1, round(random.Random(key).lognormvariate(0.0, OUTPUT_SIGMA) * MEDIAN_OUTPUT_TOKENS))


def split_tokens(text: str) -> list[str]:
    """Split a text into tokens."""
    return [text[start : start + CHARACTERS] for start in range(0, len(text), CHARACTERS)]


def text_of_ids(ids: Sequence[int]) -> str:
    """Return a text for token ids: one token each, different for all ids below 16 million, so that prefixes are preserved."""
    shifts = range(6 * (CHARACTERS - 1), -1, -6)
    return "".join(DIGITS[(token >> shift) % len(DIGITS)] for token in ids for shift in shifts)
