"""Factors between units, so that no other module writes a power of ten."""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MS_PER_S = 1_000
CHARACTERS_PER_TOKEN = 4.0
"""English text in common byte-pair vocabularies: about four characters per token (OpenAI's tokenizer help page)."""
