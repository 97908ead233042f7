"""The workload `structured_json`: notes to turn into JSON of a given schema, which the engine enforces."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.settings import WorkloadSettings
from servebench.util.errors import ConfigError
from servebench.workload.build.fill import FillingWorkload
from servebench.workload.build.lengths import sample_lengths
from servebench.workload.build.requests import as_request
from servebench.workload.build.seeding import generator, salt
from servebench.workload.sources.schemas import TIERS, SchemaTask, Tier, builtin_tasks, instance, notes, own_tasks

DEFAULT_OUTPUT_TOKENS = 512
TWIN_SUFFIX = "-free"
REMARKS = "Remarks that belong in no field:"


@dataclass(frozen=True, kw_only=True)
class StructuredJsonSettings(WorkloadSettings):
    """`tiers` selects schemas by difficulty; `path` is a file with your own tasks instead. With `twins` half of the requests
    repeat the other half without the schema enforced, which measures the cost of enforcing. With `show_schema` the prompt
    contains the schema. A null `input_tokens` leaves prompts as long as they are; a length fills them up to it."""

    tiers: tuple[Tier, ...] = TIERS
    path: str | None = None
    twins: bool = False
    show_schema: bool = True


class StructuredJsonWorkload(FillingWorkload):
    """Facts as plain lines, drawn for each request, and the schema of the JSON to make of them.

    Each request's `reference` has the `schema`, the `expected` document, `name` and `tier` of the schema, whether it is
    `constrained`, and in a twin `twin_of`, the id of the constrained request. Both of a pair ask for the same document;
    their order is random.
    """

    name = "structured_json"
    settings: StructuredJsonSettings
    settings_type = StructuredJsonSettings
    reference_keys = ("schema", "expected")

    def check(self) -> list[str]:
        """Report an empty list of tiers, a file that cannot be used, and answers that must not end with their JSON."""
        faults = []
        if self.settings.path is not None:
            try:
                own_tasks(self.settings.path)
            except ConfigError as error:
                faults += error.faults
        if not self.settings.tiers:
            faults.append(f"workload.tiers=[] leaves no schema; set it to some of {', '.join(TIERS)}")
        if self.settings.exact_output:
            faults.append(
                "workload.exact_output=true: an answer that continues after its JSON is not valid JSON; leave it false for "
                "structured_json and limit answers with workload.output_tokens"
            )
        return faults

    def requests(self, count: int, *, stream: str, tokenizer: Tokenizer) -> Sequence[Request]:
        """Return `count` requests, twins included. Raises ConfigError when `input_tokens` is less than a prompt needs."""
        settings = self.settings
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
        """Return the prompts and their lengths: as they are, or with remarks up to the requested lengths."""
        spec = self.settings.input_tokens
        if spec is None:
            return starts, tokenizer.count(starts)
        lengths = sample_lengths(spec, len(starts), rng)
        starts = [f"{start}\n\n{REMARKS}" for start in starts]
        needed = tokenizer.count(starts)
        if short := [index for index, length in enumerate(lengths) if length < needed[index]]:
            raise ConfigError(
                f"workload.input_tokens: {len(short)} of {len(starts)} prompts need more, up to {max(needed)} "
                "tokens; raise it, or use fewer workload.tiers or workload.show_schema=false"
            )
        return self.fill(starts, lengths, rng, tokenizer)


@dataclass(frozen=True)
class _Draft:
    """One request before its text."""

    request_id: str
    place: int
    task: SchemaTask
    document: Any
    twin_of: str | None


def _drafts(settings: StructuredJsonSettings, count: int, stream: str, rng: random.Random) -> list[_Draft]:
    """Return `count` drafts; twins come in pairs, without a twin for the last one if the count is odd."""
    if settings.path is not None:
        tasks = list(own_tasks(settings.path))
    else:
        tasks = [task for task in builtin_tasks() if task.tier in settings.tiers]
    drafts: list[_Draft] = []
    while len(drafts) < count:
        task = rng.choice(tasks)
        document = task.expected if task.source is None else instance(task.source, rng)
        place = len(drafts)
        request_id = f"{stream}-{place:05d}"
        pair = [_Draft(request_id, place, task, document, None)]
        if settings.twins and count - place > 1:
            pair.append(_Draft(request_id + TWIN_SUFFIX, place + 1, task, document, request_id))
            rng.shuffle(pair)
        drafts += pair
    return drafts


def _prompt(draft: _Draft, settings: StructuredJsonSettings, stream: str) -> str:
    """Return the prompt, with a salt if `cache` is `cold`: twins would hit each other's prompt in the cache."""
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
