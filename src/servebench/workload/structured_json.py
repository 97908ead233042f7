"""The workload `structured_json`: notes to be turned into JSON of a given schema, which the engine enforces."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servebench.contracts.request import Request, Tokenizer, Workload
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.lengths import sample_lengths
from servebench.workload.salt import as_request, generator, salt
from servebench.workload.schemas import TIERS, SchemaTask, Tier, builtin_tasks, instance, notes, own_tasks
from servebench.workload.unique import WordList, fill

DEFAULT_OUTPUT_TOKENS = 512
TWIN_SUFFIX = "-free"
REMARKS = "Remarks that belong in no field:"


@dataclass(frozen=True, kw_only=True)
class StructuredJsonSettings(WorkloadSettings):
    """`tiers` chooses schemas by difficulty; `path` is a file of tasks of your own in their place. With `twins` half of the
    requests are the other half's without the schema enforced, so that what enforcing costs is measured. With
    `show_schema` the prompt contains the schema. A null `input_tokens` leaves prompts as long as they are; a length fills
    them up to it."""

    tiers: tuple[Tier, ...] = TIERS
    path: str | None = None
    twins: bool = False
    show_schema: bool = True


class StructuredJsonWorkload(Workload):
    """Facts as plain lines, drawn for each request, and the schema of the JSON that is to be made of them.

    Each request's `reference` has the `schema`, the `expected` document, `name` and `tier` of the schema, whether it is
    `constrained`, and in a twin `twin_of`, the id of the constrained request. Both of a pair ask for the same document;
    which of them comes first is drawn.
    """

    name = "structured_json"
    settings_type = StructuredJsonSettings
    reference_keys = ("schema", "expected")

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__(settings)
        assert isinstance(settings, StructuredJsonSettings)
        self._settings = settings
        self._words = WordList()

    def check(self) -> list[str]:
        """No tier, a file that is none, or an answer that may not end where its JSON does."""
        faults = []
        if self._settings.path is not None:
            try:
                own_tasks(self._settings.path)
            except ConfigError as error:
                faults += error.faults
        if not self._settings.tiers:
            faults.append(f"workload.tiers=[] leaves no schema; give some of {', '.join(TIERS)}")
        if self._settings.exact_output:
            faults.append(
                "workload.exact_output=true: an answer that must go on after its JSON is none; leave it false for "
                "structured_json and bound answers with workload.output_tokens"
            )
        return faults

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """`count` requests, twins counted. Raises ConfigError when `input_tokens` is less than a prompt needs."""
        settings = self._settings
        rng = generator(settings.seed, stream)
        drafts = _drafts(settings, count, stream, rng)
        starts = [_prompt(draft, settings, stream) for draft in drafts]
        outputs = sample_lengths(settings.output_tokens or DEFAULT_OUTPUT_TOKENS, count, rng)
        texts, counts = self._filled(starts, rng, tokenizer)
        return [
            as_request(
                texts[index],
                settings.api,
                draft.request_id,
                output_tokens=outputs[index],
                temperature=settings.temperature,
                prompt_tokens=counts[index],
                schema=draft.task.schema if draft.twin_of is None else None,
                reference=_reference(draft),
            )
            for index, draft in enumerate(drafts)
        ]

    def _filled(
        self, starts: Sequence[str], rng: random.Random, tokenizer: Tokenizer
    ) -> tuple[Sequence[str], Sequence[int]]:
        """The prompts as they are, or with remarks up to their lengths."""
        asked = self._settings.input_tokens
        if asked is None:
            return starts, tokenizer.count(starts)
        lengths = sample_lengths(asked, len(starts), rng)
        starts = [f"{start}\n\n{REMARKS}" for start in starts]
        needed = tokenizer.count(starts)
        if short := [index for index, length in enumerate(lengths) if length < needed[index]]:
            raise ConfigError(
                f"workload.input_tokens: {len(short)} of {len(starts)} prompts need more than they are given, up to "
                f"{max(needed)} tokens; give that many or more, fewer workload.tiers, or workload.show_schema=false"
            )
        return fill(starts, lengths, rng, tokenizer, words=self._words.of(tokenizer))


@dataclass(frozen=True)
class _Draft:
    """One request before its text."""

    request_id: str
    place: int
    task: SchemaTask
    document: Any
    twin_of: str | None


def _drafts(settings: StructuredJsonSettings, count: int, stream: str, rng: random.Random) -> list[_Draft]:
    """`count` drafts; with twins in pairs, a last one without its pair where the count is odd."""
    if settings.path is not None:
        tasks = list(own_tasks(settings.path))
    else:
        tasks = [task for task in builtin_tasks() if task.tier in settings.tiers]
    found: list[_Draft] = []
    while len(found) < count:
        task = rng.choice(tasks)
        document = task.expected if task.source is None else instance(task.source, rng)
        place = len(found)
        request_id = f"{stream}-{place:05d}"
        pair = [_Draft(request_id, place, task, document, None)]
        if settings.twins and count - place > 1:
            pair.append(_Draft(request_id + TWIN_SUFFIX, place + 1, task, document, request_id))
            rng.shuffle(pair)
        found += pair
    return found


def _prompt(draft: _Draft, settings: StructuredJsonSettings, stream: str) -> str:
    """Salted where the cache must not help: twins would find each other's prompt there."""
    parts = [f"{draft.task.words} Answer with the JSON object only: no explanation, no code fence."]
    if draft.task.source is not None:
        parts.append(f"Notes:\n{notes(draft.document)}")
    if settings.show_schema:
        parts.append(f"JSON Schema:\n{json.dumps(draft.task.schema, separators=(',', ':'))}")
    if settings.cache == "cold":
        parts.insert(0, f"[{salt(settings.seed, stream, draft.place)}]")
    return "\n\n".join(parts)


def _reference(draft: _Draft) -> Mapping[str, Any]:
    return {
        "schema": draft.task.schema,
        "expected": draft.document,
        "name": draft.task.name,
        "tier": draft.task.tier,
        "constrained": draft.twin_of is None,
        "twin_of": draft.twin_of,
    }
