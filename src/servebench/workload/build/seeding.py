"""Random generators and salts that follow from a seed, and Zipf's law."""

import hashlib
import random

SALT_CHARACTERS = 12
SALT_TOKENS_MAX = 16
"""No tokenizer needs more for a salt and the character that separates it from the text before: at worst one token a character."""


def salt(seed: int, stream: str, index: int) -> str:
    """Return twelve hexadecimal characters (48 bits) that follow from the arguments and make a prompt unlike any other."""
    return hashlib.sha256(f"{seed}/{stream}/{index}".encode()).hexdigest()[:SALT_CHARACTERS]


def generator(seed: int, stream: str) -> random.Random:
    """Return the random generator of a stream, the same in every process."""
    return random.Random(f"{seed}/{stream}")


def zipf(count: int, skew: float) -> list[float]:
    """Return the popularity of `count` things, summing to 1: p(k) proportional to 1 / k^skew for k = 1, 2, ... (Zipf's law)."""
    weights = [float(k) ** -skew for k in range(1, count + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]
