"""The workload `trace`: lengths, arrivals and shared prefixes of a recorded service, with synthesized prompts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.settings import PositiveFloat, PositiveInt, WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.build.fill import FillingWorkload
from servebench.workload.build.requests import as_requests
from servebench.workload.build.seeding import SALT_TOKENS_MAX, generator, salt
from servebench.workload.sources.trace_files import (
    BUILTIN_BLOCK_TOKENS,
    MOONCAKE_BLOCK_TOKENS,
    TraceRow,
    trace_faults,
    trace_rows,
)


@dataclass(frozen=True, kw_only=True)
class TraceSettings(WorkloadSettings):
    """`path` is `builtin` or a trace file. `block_tokens` is the size of a hash block (null: what the trace says, else 512 as in
    Mooncake's traces; 16 in Bailian's, 64 in the shipped one). `length_scale` scales all lengths and blocks; `max_input_tokens`
    leaves out requests that are longer after scaling. `input_tokens` and `output_tokens` must be null."""

    path: str = "builtin"
    block_tokens: PositiveInt | None = None
    length_scale: PositiveFloat = 1.0
    max_input_tokens: PositiveInt | None = None
    exact_output: bool = True


class TraceWorkload(FillingWorkload):
    """The trace's requests in order; when more are needed, it is repeated with other blocks.

    The text of a hash block follows from seed and block alone: prompts share text exactly as far as their leading ids are
    equal. With `cache` `cold` each stream has its own blocks. `arrival_s` is the trace's; each repetition follows the one
    before after a mean gap.
    """

    name = "trace"
    settings: TraceSettings
    settings_type = TraceSettings

    def check(self) -> list[str]:
        """Report a trace that cannot be read, lengths that have no effect, and blocks too short to be distinct."""
        return trace_faults(self.settings.path) + self.length_faults(self._block_tokens())

    def notes(self) -> list[str]:
        """Say which requests are left out."""
        lost, long = trace_rows(self.settings.path).failures, len(trace_rows(self.settings.path)) - len(self._rows()[0])
        why = f"{lost:,} requests lack input, output or a time, {long:,} are longer than workload.max_input_tokens"
        return [f"{self.settings.path}: {why}; they are left out"] if lost or long else []

    def length_faults(self, block_tokens: int) -> list[str]:
        """Return why lengths have no effect, and that recorded blocks of this many tokens are too short when they are scaled."""
        settings = self.settings
        faults = [
            f"workload.{key}: {self.name} takes lengths from its file; set it to null and use workload.length_scale"
            for key in ("input_tokens", "output_tokens")
            if getattr(settings, key) is not None
        ]
        scaled = max(1, round(block_tokens * settings.length_scale))
        if scaled < SALT_TOKENS_MAX:
            least = math.ceil(100 * SALT_TOKENS_MAX / block_tokens) / 100
            faults.append(
                f"workload.length_scale={settings.length_scale:g} makes hash blocks of {scaled} tokens; "
                f"distinct blocks need {SALT_TOKENS_MAX}: set it to {least:g} or more, or raise workload.block_tokens"
            )
        return faults

    def block_tokens(self) -> int:
        """Return the tokens of a hash block, scaled."""
        return max(1, round(self._block_tokens() * self.settings.length_scale))

    def _block_tokens(self) -> int:
        path = self.settings.path
        usual = BUILTIN_BLOCK_TOKENS if path == "builtin" else MOONCAKE_BLOCK_TOKENS
        if self.settings.block_tokens is None and path != "builtin" and not trace_faults(path):
            # a recording knows the size best at its end
            usual = trace_rows(path)[-1].block_tokens or usual
        return self.settings.block_tokens or usual

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return the first `count` requests of the trace. Raises ConfigError when none is left."""
        settings = self.settings
        owner = f"blocks/{stream}" if settings.cache == "cold" else "blocks"
        rows, period_s = self._rows()
        blocks: dict[str, str] = {}
        texts, lengths, outputs, arrivals_s = [], [], [], []
        for index in range(count):
            lap, place = divmod(index, len(rows))
            row = rows[place]
            names = [f"{owner}/{lap}/{block}" for block in row.blocks]
            names.append(f"{owner}/alone/{stream}/{index}")
            text, length = self.prompt_of(names, self._length(row), self.block_tokens(), blocks, tokenizer)
            texts.append(text)
            lengths.append(length)
            outputs.append(max(1, round(row.output_tokens * settings.length_scale)))
            arrivals_s.append(row.arrival_s + lap * period_s)
        return as_requests(settings, stream, texts, prompt_tokens=lengths, output_tokens=outputs, arrival_s=arrivals_s)

    def _rows(self) -> tuple[list[TraceRow], float]:
        """Return the rows that are short enough, and the time they take with a mean gap after the last."""
        settings = self.settings
        most = settings.max_input_tokens
        everything = trace_rows(settings.path)
        rows = [row for row in everything if most is None or self._length(row) <= most]
        if not rows:
            raise ConfigError(
                f"workload.max_input_tokens={most} leaves no request of workload.path={settings.path}, whose shortest "
                f"has {min(map(self._length, everything))} tokens; raise it or lower workload.length_scale"
            )
        gaps = [later.arrival_s - sooner.arrival_s for sooner, later in pairwise(rows)]
        # a trace of one moment would never end a timed load
        mean_gap_s = (sum(gaps) / len(gaps) if gaps else 0.0) or 1.0
        return rows, rows[-1].arrival_s - rows[0].arrival_s + mean_gap_s

    def _length(self, row: TraceRow) -> int:
        return max(1, round(row.input_tokens * self.settings.length_scale))

    def prompt_of(
        self, names: Sequence[str], total: int, size: int, blocks: dict[str, str], tokenizer: Tokenizer
    ) -> tuple[str, int]:
        """Return whole blocks of `size` tokens followed by words up to `total`, and the tokens reached: the words are those of
        the next block, or unique ones (the last name). `blocks` keeps the texts of blocks by name."""
        whole = min(total // size, len(names) - 1)
        for name in names[:whole]:
            if name not in blocks:
                blocks[name] = self.piece("", name, size, tokenizer)[0]
        start = "".join(blocks[name] for name in names[:whole])
        if total == whole * size and tokenizer.count([start]) == [total]:
            return start, total
        return self.piece(start, names[whole], total, tokenizer)

    def piece(self, before: str, name: str, length: int, tokenizer: Tokenizer) -> tuple[str, int]:
        """Return `before` followed by words that belong to the name, up to a length in tokens, and the length reached."""
        seed = self.settings.seed
        rng = generator(seed, name)
        start = f"{before}[{salt(seed, name, 0)}]"
        (text,), (count,) = self.fill([start], [length], rng, tokenizer)
        return text, count
