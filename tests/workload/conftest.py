"""Tokenizers of known behaviour."""

import re

import pytest

from servebench.contracts.request import Tokenizer
from servebench.engine.tokenize import ApproximateTokenizer


class PieceTokenizer:
    """Exact by definition. Short words, signs and runs of line ends are one token; words of more than six letters two;
    words with a digit (salts) one for each three characters begun. A blank belongs to the word after it."""

    name = "pieces"
    exact = True

    def __init__(self):
        self.counted = 0

    def ends(self, text):
        """Where each token ends."""
        found: list[int] = []
        for match in re.finditer(r" ?[^\W_]+|\n+|[^\w\s]|_", text):
            start, end = match.span()
            word = match.group().strip(" ")
            if re.search(r"\d", word):
                found += [*range(end - len(word) + 3, end, 3), end]
            elif len(word) > 6:
                found += [start + 4, end]
            else:
                found.append(end)
        return found

    def count(self, texts):
        self.counted += len(texts)
        return [len(self.ends(text)) for text in texts]

    def truncate(self, text, tokens):
        ends = self.ends(text)
        return text if len(ends) <= tokens else text[: ends[tokens - 1]] if tokens else ""


class ByteTokenizer:
    """Exact, and without a single word that is one token."""

    name = "bytes"
    exact = True

    def count(self, texts):
        return [len(text.encode()) for text in texts]

    def truncate(self, text, tokens):
        return text.encode()[:tokens].decode(errors="ignore")


@pytest.fixture
def pieces():
    return PieceTokenizer()


@pytest.fixture
def quarters():
    return ApproximateTokenizer()


@pytest.fixture(params=[PieceTokenizer, ByteTokenizer, ApproximateTokenizer], ids=lambda kind: kind.name.split()[0])
def any_tokenizer(request):
    found: Tokenizer = request.param()
    return found


@pytest.fixture
def text_of():
    """The text of a request of one turn, and proof that it is either chat or completion."""

    def get(request):
        assert (request.messages is None) != (request.prompt is None)
        if request.messages is not None:
            (message,) = request.messages
            assert message.role == "user"
            return message.content
        assert request.prompt is not None
        return request.prompt

    return get
