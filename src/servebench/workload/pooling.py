"""The workloads `embeddings` and `rerank`: texts of exact length that share nothing, several in each request."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    reference_keys = ()

    def check(self) -> list[str]:
        """Report an API that these requests do not have."""
        given = self.settings.api
        return [] if given == self.name else [f"workload.api={given} must be {self.name} with workload={self.name}"]

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests, no two texts alike. Each counts the tokens of its texts, a query with each document."""
        settings = self.settings
        each, query = settings.batch_size, getattr(settings, "query_tokens", None)
        rng = generator(settings.seed, stream)
        lengths = sample_lengths(settings.input_tokens or 128, count * each, rng, floor=SALT_TOKENS_MAX)
        lengths += [query] * count if query is not None else []
        salts = [salt(settings.seed, stream, index) for index in range(len(lengths))]
        texts, counts = self.fill(salts, lengths, rng, tokenizer)
        made = []
        for index in range(count):
            batch, tokens = texts[index * each : (index + 1) * each], sum(counts[index * each : (index + 1) * each])
            if query is not None:
                batch.insert(0, texts[count * each + index])
                tokens += each * counts[count * each + index]
            more = {"output_tokens": 1, "prompt_tokens": tokens, "inputs": tuple(batch[1:])}
            made.append(kind_named(self.name).request(batch[0], f"{stream}-{index:05d}", **more))
        return made


class RerankWorkload(EmbeddingsWorkload):
    """A query and documents of random words: what is ranked first means nothing."""

    name = "rerank"
    settings_type = RerankSettings
