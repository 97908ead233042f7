"""The workloads `dataset` and `sharegpt`: prompts and conversations of the user's own, or those that ship with servebench."""

import json
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Literal

from servebench.contracts.request import Message, PriorAnswer, Request, Tokenizer, Workload, answer_mark
from servebench.contracts.settings import PositiveInt, WorkloadSettings
from servebench.protocol.kinds.table import kind_named
from servebench.util.errors import ConfigError
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.requests import transcript
from servebench.workload.build.seeding import generator, salt
from servebench.workload.sources.dataset import Dataset, FieldNames, Row, dataset_faults, load_dataset_rows

DEFAULT_OUTPUT_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class DatasetSettings(WorkloadSettings):
    """`dataset` is a path, `builtin`, or `hf:` and the name of a data set of the Hugging Face hub with its `subset` and `split`;
    `fields` are the names of a row's fields. Each turn of a conversation is a request; with `history` `recorded` the turns before
    it are those of the data, with `real` the assistant's are the model's own answers. At least `active` conversations are begun,
    with fewer turns each where a point has few requests.

    Rows whose longest prompt is outside the two limits (in tokens, without a salt) are left out. With `input_tokens` a length is
    drawn for each row, and the one of the nearest length is used unchanged."""

    dataset: str | None = None
    subset: str | None = None
    split: str = "train"
    fields: FieldNames = field(default_factory=FieldNames)
    history: Literal["recorded", "real"] = "recorded"
    active: PositiveInt = 16
    min_prompt_tokens: PositiveInt | None = None
    max_prompt_tokens: PositiveInt | None = None


class DatasetWorkload(Workload):
    """Every turn of the rows of a data set, conversation after conversation, in an order of each stream's own.

    When all rows have been used they are used again, in another order. With `cache` `cold` a salt stands before the first
    message: rows with one system message share it within a stream, as in service, and nothing else is ever repeated.
    """

    name = "dataset"
    settings: DatasetSettings
    settings_type = DatasetSettings
    reference_keys = ()
    _lengths: Sequence[int] = ()

    @cached_property
    def _data(self) -> Dataset:
        settings = self.settings
        return load_dataset_rows(settings.dataset or "", settings.subset, settings.split, settings.fields)

    def check(self) -> list[str]:
        """Report a data set that is not there, and limits that exclude each other."""
        low, high = self.settings.min_prompt_tokens, self.settings.max_prompt_tokens
        source = self.settings.dataset
        faults = dataset_faults(source) if source else ["workload.dataset is required: add dataset=FILE"]
        if low is not None and high is not None and low > high:
            faults.append(f"workload.min_prompt_tokens={low} is more than workload.max_prompt_tokens={high}; swap them")
        return faults

    def notes(self) -> list[str]:
        """Say which rows are left out, and where the length of an answer is not that of the data."""
        source, rows = self.settings.dataset, self._data.rows
        notes = []
        if self._data.silent:
            notes.append(f"{source}: {self._data.silent} conversations without a turn of a user are left out")
        lengths = [row.output_tokens or row.answer(turn) for row in rows for turn in range(len(row.turns))]
        known, total = sum(one is not None for one in lengths), len(lengths)
        if self.settings.output_tokens is not None and known:
            notes.append(
                f"{source}: {known:,} of {total:,} requests have a length or a recorded answer, which workload.output_tokens "
                "replaces; set it to null for their own"
            )
        elif self.settings.output_tokens is None and known < total:
            notes.append(
                f"{source}: {total - known:,} of {total:,} requests say no length of their answer, which ends after "
                f"{DEFAULT_OUTPUT_TOKENS} tokens at the latest; set workload.output_tokens for another length"
            )
        if self.settings.cache != "cold":
            again = f"what is sent again (at each level, after {total:,} requests) is cached"
            notes.append(f"{source}: {again}; workload.cache=cold prevents it")
        return notes

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests, those of a conversation one after another. Raises ConfigError when no row fits the limits."""
        rng = generator(self.settings.seed, stream)
        rows, lengths = self._rows(tokenizer)
        if self.settings.input_tokens is None:
            chosen = _cycle(len(rows), count, rng)
        else:
            chosen = _nearest(lengths, sample_lengths(self.settings.input_tokens, count, rng), rng)
        shares = turns_sent([len(rows[number].turns) for number in chosen], count, min(self.settings.active, len(rows)))
        salted = (self._salted(rows[n], f"{stream}/{n}", place // len(rows), stream) for place, n in enumerate(chosen))
        return self._of_rows(zip(salted, shares, strict=False), stream, rng, tokenizer)

    def in_order(self, count: int, *, tokenizer: Tokenizer) -> tuple[int, int, list[Request]]:
        """Return how many rows are used, how many requests they have, and those of the first `count` rows, in the order of the
        data and without a salt. Raises ConfigError."""
        rows, _ = self._rows(tokenizer)
        first = self._of_rows([(row, len(row.turns)) for row in rows[:count]], "row", generator(0, "row"), tokenizer)
        return len(rows), sum(len(row.turns) for row in rows), first

    def _of_rows(
        self, rows: Iterable[tuple[Row, int]], stream: str, rng: random.Random, tokenizer: Tokenizer
    ) -> list[Request]:
        """Return the requests of rows, of each as many turns as are named with it."""
        made: list[Request] = []
        turns: list[tuple[Row, int]] = []
        for place, (row, share) in enumerate(rows):
            ids = [f"{stream}-{len(made) + turn:05d}" for turn in range(share)]
            session = f"{stream}/{place:05d}" if len(row.turns) > 1 else None
            made += [self._request(row, turn, ids, session) for turn in range(share)]
            turns += [(row, turn) for turn in range(share)]
        return self._sized(made, turns, rng, tokenizer)

    def _rows(self, tokenizer: Tokenizer) -> tuple[Sequence[Row], Sequence[int]]:
        """Return the rows within the limits, and the tokens of the longest prompt of each, if these matter."""
        settings, rows = self.settings, self._data.rows
        low, high = settings.min_prompt_tokens or 0, settings.max_prompt_tokens
        if (low, high, settings.input_tokens) == (0, None, None):
            return rows, ()
        if not self._lengths:
            counts = _counts([one.content for row in rows for one in row.messages], tokenizer)
            self._lengths = [sum(counts[one.content] for one in row.messages[: row.turns[-1]]) for row in rows]
        lengths = self._lengths
        kept = [at for at, length in enumerate(lengths) if low <= length and (high is None or length <= high)]
        if not kept:
            limits = f"{low} tokens or more" if high is None else f"{low} to {high} tokens"
            raise ConfigError(
                f"workload.dataset={settings.dataset} has no prompt of {limits} (its prompts have {min(lengths)} to "
                f"{max(lengths)}); change workload.min_prompt_tokens or workload.max_prompt_tokens"
            )
        return [rows[at] for at in kept], [lengths[at] for at in kept]

    def _salted(self, row: Row, owner: str, lap: int, stream: str) -> Row:
        if self.settings.cache != "cold":
            return row
        first = row.messages[0]
        # rows with one system message share it
        name = f"{stream}/{first.content}" if first.role != "user" else owner
        marked = f"[{salt(self.settings.seed, name, lap)}]\n{first.content}"
        return replace(row, messages=(replace(first, content=marked), *row.messages[1:]))

    def _request(self, row: Row, turn: int, ids: Sequence[str], session: str | None) -> Request:
        """Return a request without its lengths."""
        settings = self.settings
        messages = list(row.messages[: row.turns[turn]])
        chat = kind_named(settings.api).takes_messages
        answers = []
        for earlier, at in enumerate(row.turns[:turn]):
            # the results of tools answer to the recorded calls
            if settings.history == "real" and not messages[at].extra:
                mark, recorded = answer_mark(ids[earlier]), messages[at].content
                answers.append(PriorAnswer(of=ids[earlier], mark=mark, stand_in=recorded if chat else f" {recorded}"))
                messages[at] = replace(messages[at], content=mark)
        return Request(
            request_id=ids[turn],
            api=settings.api,
            messages=tuple(messages) if chat else None,
            prompt=None if chat else messages[0].content if len(messages) == 1 else transcript(messages, answers),
            exact_output=settings.exact_output,
            temperature=settings.temperature,
            session_id=session,
            extra=row.extra,
            answers=tuple(answers),
        )

    def _sized(
        self, made: Sequence[Request], turns: Sequence[tuple[Row, int]], rng: random.Random, tokenizer: Tokenizer
    ) -> list[Request]:
        """Return the requests with the lengths of prompts and answers: those set, else the row's own, else the recorded ones."""
        recorded = [_recorded(row.answer(turn)) for row, turn in turns]
        prompts = [[one.content for one in request.messages or ()] or [request.prompt or ""] for request in made]
        counts = _counts([*recorded, *(text for texts in prompts for text in texts)], tokenizer)
        lengths: Sequence[int] = [
            row.output_tokens or counts[answer] or DEFAULT_OUTPUT_TOKENS
            for (row, _), answer in zip(turns, recorded, strict=True)
        ]
        if self.settings.output_tokens is not None:
            lengths = sample_lengths(self.settings.output_tokens, len(made), rng)
        return [
            replace(
                request,
                output_tokens=length,
                prompt_tokens=None if request.answers else sum(counts[text] for text in texts),
            )
            for request, texts, length in zip(made, prompts, lengths, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class ShareGptSettings(DatasetSettings):
    """Those of `dataset`, with the shipped prompts unless another set is named."""

    dataset: str | None = "builtin"


class ShareGptWorkload(DatasetWorkload):
    """The prompts that ship with servebench; a name of its own for a data set without a file."""

    name = "sharegpt"
    settings_type = ShareGptSettings


def turns_sent(sizes: Sequence[int], count: int, active: int) -> list[int]:
    """Return how many turns of each of the first conversations are sent, `count` in all.

    Whole ones, of which the last may be cut; where these are fewer than `active`, that many (or all there are) get one turn
    after another, so that a level of that many users is reached.
    """
    whole = total = 0
    while total < count:
        total += sizes[whole]
        whole += 1
    if whole >= active:
        return [*sizes[: whole - 1], sizes[whole - 1] - (total - count)]
    few = sizes[:active]
    in_turns = (place for turn in range(max(few, default=0)) for place, size in enumerate(few) if turn < size)
    sent = [0] * len(few)
    for place, _ in zip(in_turns, range(count), strict=False):
        sent[place] += 1
    return sent


def _recorded(answer: Message | None) -> str:
    """Return the text that says how long a recorded answer is: its own, or its calls of tools."""
    if answer is None or answer.content or not answer.extra.get("tool_calls"):
        return "" if answer is None else answer.content
    return json.dumps(answer.extra["tool_calls"])


def _counts(texts: Sequence[str], tokenizer: Tokenizer) -> Mapping[str, int]:
    """Return the tokens of each text, each counted once."""
    different = list(dict.fromkeys(texts))
    return dict(zip(different, tokenizer.count(different), strict=True))


def _cycle(size: int, count: int, rng: random.Random) -> list[int]:
    """Return `count` indexes below `size`: all in a random order, then all again in another."""
    chosen: list[int] = []
    while len(chosen) < count:
        chosen += rng.sample(range(size), size)
    return chosen[:count]


def _nearest(lengths: Sequence[int], wanted: Sequence[int], rng: random.Random) -> list[int]:
    """Return the index of the nearest length for each wanted one, a random one of equals; each is used once before any twice."""
    chosen: list[int] = []
    pool: list[tuple[int, int]] = []
    for target in wanted:
        if not pool:
            pool = sorted(((length, index) for index, length in enumerate(lengths)), key=itemgetter(0))
        above = bisect_left(pool, target, key=itemgetter(0))
        gap = min(abs(pool[place][0] - target) for place in (above - 1, above) if 0 <= place < len(pool))
        low = bisect_left(pool, target - gap, key=itemgetter(0))
        high = bisect_right(pool, target + gap, key=itemgetter(0))
        nearest = [place for place in range(low, high) if abs(pool[place][0] - target) == gap]
        chosen.append(pool.pop(rng.choice(nearest))[1])
    return chosen
