"""The workload `rag_prefix`: questions about a few documents, which a prefix cache can share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.build.fill import FillingWorkload
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.requests import as_requests
from servebench.workload.build.seeding import SALT_TOKENS_MAX, generator, salt, zipf

DEFAULT_INPUT_TOKENS = 512
DEFAULT_OUTPUT_TOKENS = 64

DOCUMENTS = "documents"
"""The stream that documents come from; no point has a stream of this name."""


@dataclass(frozen=True, kw_only=True)
class RagPrefixSettings(WorkloadSettings):
    """`documents` is their number; `share` the part of `input_tokens` that is the document, the rest being the question;
    `skew` the Zipf exponent of their popularity (0: all alike). If `input_tokens` is a distribution, one length is drawn
    for each document: all questions about it make prompts of that length."""

    documents: Annotated[int, Ge(1), Le(1_000_000)] = 8
    share: Annotated[float, Ge(0), Le(0.95)] = 0.75
    skew: Annotated[float, Ge(0)] = 0.0
    exact_output: bool = True


class RagPrefixWorkload(FillingWorkload):
    """Prompts of a document with exactly `round(share * input_tokens)` tokens, followed by a unique question.

    Documents follow from the seed alone, so that warm-up and all points share them. With `cache` `cold` each stream has
    its own documents: prompts share them within a stream only.
    """

    name = "rag_prefix"
    settings: RagPrefixSettings
    settings_type = RagPrefixSettings

    def check(self) -> list[str]:
        """Report documents and questions that are too short to be distinct."""
        for total in sorted(set(self._totals())):
            document = round(self.settings.share * total)
            both = f"workload.share={self.settings.share:g} of workload.input_tokens={total}"
            if 0 < document < SALT_TOKENS_MAX:
                return [
                    f"{both} makes documents of {document} tokens; distinct documents need at least {SALT_TOKENS_MAX}: "
                    "raise workload.input_tokens, or set workload.share=0"
                ]
            if total - document < SALT_TOKENS_MAX:
                return [
                    f"{both} leaves {total - document} tokens for the question; unique questions need at least "
                    f"{SALT_TOKENS_MAX}: raise workload.input_tokens or lower workload.share"
                ]
        return []

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests, no two alike. Raises ConfigError when `check` reports something."""
        if faults := self.check():
            raise ConfigError(faults)
        settings = self.settings
        chosen = self.documents_of(count, stream=stream)
        totals = self._totals()
        documents = self._document_texts(sorted(set(chosen)), totals, stream, tokenizer)
        rng = generator(settings.seed, f"{stream}/questions")
        outputs = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, count, rng)
        starts = [documents[number] + salt(settings.seed, stream, index) for index, number in enumerate(chosen)]
        lengths = [totals[number] for number in chosen]
        texts, counts = self.fill(starts, lengths, rng, tokenizer)
        return as_requests(settings, stream, texts, prompt_tokens=counts, output_tokens=outputs)

    def documents_of(self, count: int, *, stream: str) -> list[int]:
        """Return the number of the document (from 0, most popular first) of each of the stream's requests."""
        settings = self.settings
        rng = generator(settings.seed, stream)
        return rng.choices(range(settings.documents), zipf(settings.documents, settings.skew), k=count)

    def _totals(self) -> list[int]:
        """Return the prompt tokens of requests about each document."""
        settings = self.settings
        rng = generator(settings.seed, f"{DOCUMENTS}/lengths")
        return sample_lengths(settings.input_tokens or DEFAULT_INPUT_TOKENS, settings.documents, rng)

    def _document_texts(
        self, wanted: Sequence[int], totals: Sequence[int], stream: str, tokenizer: Tokenizer
    ) -> dict[int, str]:
        """Return what stands before the question for each wanted document: its text and an empty line, or nothing."""
        settings = self.settings
        owner = f"{DOCUMENTS}/{stream}" if settings.cache == "cold" else DOCUMENTS
        texts = {}
        for number in wanted:
            length = round(settings.share * totals[number])
            if length == 0:
                texts[number] = ""
                continue
            # one generator each, so that a document does not depend on which others are wanted
            rng = generator(settings.seed, f"{owner}/{number}")
            start = salt(settings.seed, owner, number)
            (text,), _ = self.fill([start], [length], rng, tokenizer)
            texts[number] = f"{text}\n\n"
        return texts
