"""Non-latency metrics of a point: ideal cache hits, answers that match their JSON schema, facts found."""

from collections.abc import Sequence
from typing import Any

from servebench.analysis.warnings.catalog import SCHEMA_NOT_ENFORCED
from servebench.contracts.engine import Engine
from servebench.contracts.point_row import PointRow
from servebench.contracts.request import Request, Tokenizer
from servebench.contracts.results import Doubt, Record
from servebench.measure.compliance import json_columns
from servebench.measure.needles import needle_columns
from servebench.util.proportions import wilson
from servebench.workload.ideal_cache import ideal_columns


def content_columns(
    requests: Sequence[Request], records: Sequence[Record], tokenizer: Tokenizer | None, row: PointRow
) -> dict[str, Any]:
    """Return the columns that follow from prompts and answers; `_low` and `_high` are Wilson intervals.

    The ideal hit rate needs whole prompts, and a `tokenizer`.
    """
    columns: dict[str, Any] = {
        **json_columns(records, requests),
        **needle_columns(records, requests),
        **(ideal_columns(requests, records, tokenizer, row) if tokenizer is not None else {}),
    }
    share, count = columns.get("json_compliance"), columns.get("json_compliance_n")
    if share is not None and count:
        columns["json_compliance_low"], columns["json_compliance_high"] = wilson(round(share * count), count)
    return columns


def content_doubts(requests: Sequence[Request], engine: Engine) -> list[Doubt]:
    """Return warnings about answers whose content cannot be what the workload requests."""
    if engine.dialect.json_schema or not any(request.schema is not None for request in requests):
        return []
    return [
        SCHEMA_NOT_ENFORCED.issue(
            f"{engine.name} does not enforce JSON schemas, so none was sent: json_compliance describes answers that at most "
            "had the schema in their prompt"
        )
    ]
