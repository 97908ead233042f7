"""The workloads `embeddings` and `rerank`: texts of exact length that share nothing, several in each request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.settings import PositiveInt, TokenCount, WorkloadSettings
from servebench.protocol.kinds.table import kind_named
from servebench.workload.build.fill import FillingWorkload
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.seeding import SALT_TOKENS_MAX, generator, salt


@dataclass(frozen=True, kw_only=True)
class EmbeddingsSettings(WorkloadSettings):
    """`batch_size` texts of `input_tokens` in each request."""

    api: str = "embeddings"
    batch_size: PositiveInt = 1


@dataclass(frozen=True, kw_only=True)
class RerankSettings(EmbeddingsSettings):
    """A query of `query_tokens`, and `batch_size` documents of `input_tokens`, in each request."""

    api: str = "rerank"
    query_tokens: TokenCount = 16


class EmbeddingsWorkload(FillingWorkload):
    """Random words after a salt."""

    name = "embeddings"
    settings: EmbeddingsSettings
    settings_type = EmbeddingsSettings

    def check(self) -> list[str]:
        """Report an API that these requests do not have."""
        given = self.settings.api
        return [] if given == self.name else [f"workload.api={given} must be {self.name} with workload={self.name}"]

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests, no two texts alike. Each counts the tokens of its texts, a query with each document."""
        settings = self.settings
        query = getattr(settings, "query_tokens", None)
        queries, each = [] if query is None else [query], settings.batch_size
        rng = generator(settings.seed, stream)
        drawn = sample_lengths(settings.input_tokens or 128, count * each, rng, floor=SALT_TOKENS_MAX)
        lengths = [one for at in range(0, count * each, each) for one in (*queries, *drawn[at : at + each])]
        salts = [salt(settings.seed, stream, index) for index in range(len(lengths))]
        texts, counts = self.fill(salts, lengths, rng, tokenizer)
        made, size = [], each + len(queries)
        for index in range(count):
            place = slice(index * size, (index + 1) * size)
            tokens = sum(counts[place]) + (each - 1) * sum(counts[place][: len(queries)])
            more: dict[str, Any] = {"inputs": tuple(texts[place][1:]), "prompt_tokens": tokens, "output_tokens": 1}
            made.append(kind_named(self.name).request(texts[place][0], f"{stream}-{index:05d}", **more))
        return made


class RerankWorkload(EmbeddingsWorkload):
    """A query and documents of random words: what is ranked first means nothing."""

    name = "rerank"
    settings_type = RerankSettings
