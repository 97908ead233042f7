"""Prompts for the points of a run: those that another run of the study has sized, else new ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import RunSettings
from servebench.store.prompts import SizedPrompts, keep_prompts, prompts_file, read_prompts

SAMPLE = 20
"""How many prompts are counted to find how many tokens of one tokenizer a token of another is."""

SAME_COUNT = 0.02
"""Tokenizers whose counts differ by no more, as a share, are taken for the same."""


@dataclass(frozen=True)
class PromptSource:
    """Sizes the prompts of a run's points; with a study's `folder` it uses those that are stored there, and stores its own."""

    workload: Workload
    tokenizer: Tokenizer
    settings: RunSettings
    folder: Path | None = None

    def prompts(self, count: int, stream: str, *, whole: bool = False) -> SizedPrompts:
        """Return `count` prompts of a stream.

        Where fewer are stored, the others continue them, as long as the stored ones are by this run's tokenizer. `whole`
        streams (a trace) are never continued: they are stored for each number. Raises ConfigError, EngineError, StoreError.
        """
        if self.folder is None:
            return self._sized(count, stream, self.tokenizer)
        name = f"{stream}-of-{count}" if whole else stream
        path = prompts_file(self.folder, self.settings.workload, self.settings.model, name)
        stored = read_prompts(path) or keep_prompts(path, self._sized(count, stream, self.tokenizer))
        ratio = tokens_of(self.tokenizer, stored)
        same = abs(ratio - 1) <= SAME_COUNT
        have = len(stored.requests)
        if have < count:
            scaled = replace(self, tokenizer=self.tokenizer if same else ScaledTokenizer(self.tokenizer, ratio))
            more = scaled.prompts(count - have, f"{stream}-more{have}").requests
            stored = replace(stored, requests=stored.requests + more)
        return SizedPrompts(stored.requests[:count], stored.tokenizer, stored.exact and same)

    def _sized(self, count: int, stream: str, tokenizer: Tokenizer) -> SizedPrompts:
        requests = self.workload.requests(count, stream=stream, tokenizer=tokenizer)
        return SizedPrompts(tuple(requests), tokenizer.name, tokenizer.exact)


def tokens_of(tokenizer: Tokenizer, prompts: SizedPrompts) -> float:
    """Return how many tokens of `tokenizer` a token is by which the prompts were sized; 1 where that is unknown."""
    if not tokenizer.exact:
        return 1.0
    known = [one for one in prompts.requests if one.prompt_tokens and not one.answers][:SAMPLE]
    texts = [text for one in known for text in _texts(one)]
    planned = sum(one.prompt_tokens or 0 for one in known)
    return sum(tokenizer.count(texts)) / planned if planned and texts else 1.0


def _texts(request: Request) -> list[str]:
    return [message.content for message in request.messages or ()] + ([request.prompt] if request.prompt else [])


@dataclass(frozen=True)
class ScaledTokenizer:
    """Counts as the tokenizer that sized the study's first prompts would, from the counts of another: their mean `ratio`."""

    own: Tokenizer
    ratio: float
    exact = False

    @property
    def name(self) -> str:
        """The name of the tokenizer that counts."""
        return f"{self.own.name}, scaled to the study's first prompts"

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the scaled counts, at least 1 for a text that is not empty."""
        return [max(1, round(count / self.ratio)) if count else 0 for count in self.own.count(texts)]

    def truncate(self, text: str, tokens: int) -> str:
        """Return the longest prefix of at most this many scaled tokens."""
        return self.own.truncate(text, max(1, round(tokens * self.ratio)))
