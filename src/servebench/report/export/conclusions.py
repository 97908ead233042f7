"""Conclusions as JSON: what `compare`, `recommend`, `report`, `show STUDY` and a study's last screen print with `--json`.

docs/decide.md has the keys. A later version may add keys; one that takes a key away, or gives it another meaning, has a higher
`schema_version`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from servebench.analysis.answer.model import Answer, LevelLead, WorkloadAnswer
from servebench.analysis.conclude import Conclusions
from servebench.analysis.decided import StudyDecision
from servebench.analysis.limits.model import LimitFinding
from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.recommendation.model import Recommendation
from servebench.analysis.verdict.model import Comparison, ComparisonRow, VerdictKind
from servebench.contracts.level import Level
from servebench.report.wording.answer import caveat_text, failure_text, purpose_text, sentence_of, title_of
from servebench.report.wording.comparison import agreement_text, parity_text, summary_of, text_of
from servebench.report.wording.decisions import word_of
from servebench.report.wording.limits import action_text, limit_lines, statement_of
from servebench.report.wording.recommendation import quality_text, reason_text, reservations_text, use_text

SCHEMA_VERSION = 3
"""1 had no version: `compare` and `recommend` printed a list, and an answer had sentences instead of values. 2 called the best
run of a level `leader`, and that of a use `winner`."""
LEAD_KEYS = (
    *("level", "best", "rival", "size", "low", "high", "clear", "bound", "over_starts", "certain", "verdict", "tied"),
    *("unequal", "codes", "unequal_rival", "within", "behind", "by_earlier"),
)
ROW_KEYS = (
    *("level", "metric", "baseline", "candidate", "effect", "low", "high", "p", "p_corrected", "result", "bound"),
    *("method", "reasons", "competes", "widened", "level_missing"),
)


def plain(value: Any) -> Any:
    """Return a value as plain data: dataclasses as dictionaries, levels as their text, tuples as lists."""
    if isinstance(value, Level):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    return value


def as_plain(found: Conclusions | None) -> dict[str, Any]:
    """Return conclusions as plain data; of none, because a table is damaged, only nulls. What was left out is null."""
    if found is None:
        parts = dict.fromkeys(("answer", "comparisons", "decisions", "recommendations", "limits"))
        return {"schema_version": SCHEMA_VERSION, **parts}
    recommended, limits = found.recommendations, found.limits
    return {
        "schema_version": SCHEMA_VERSION,
        "answer": _answer(found.answer),
        "comparisons": [_comparison(one) for one in found.comparisons],
        "decisions": [_decision(one) for one in found.decisions],
        "recommendations": None if recommended is None else [_recommendation(one) for one in recommended],
        "limits": None if limits is None else [{"label": label, **finding_as_plain(one)} for label, one in limits],
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "baseline": comparison.ids[0] or comparison.baseline,
        "candidate": comparison.ids[1] or comparison.candidate,
        "labels": [comparison.baseline, comparison.candidate],
        "verdict": comparison.result,
        "summary": summary_of(comparison),
        "margin": comparison.margin,
        "bound": comparison.bound,
        "first": None if comparison.first is None else _row(comparison.first),
        "rows": [_row(row) for row in comparison.rows],
        "unequal": [plain(one) for one in comparison.unequal],
        "quality": [_agreement(one) for one in comparison.agreements],
        "parity": [plain(one) | {"sentence": parity_text(one)} for one in comparison.parities],
    }


def _row(row: ComparisonRow) -> dict[str, Any]:
    known = row.starts
    found = {name: getattr(row, name) for name in ROW_KEYS} | {
        "level": None if row.overall else row.level,
        "metric": row.metric.name,
        "starts": None if known is None else [int(known.baseline.size), int(known.candidate.size)],
        "method": row.method.kind if row.method is not None else None,
        "paired": known is not None and known.paired,
        "slice_by_slice": row.method is not None and row.method.slice_by_slice,
        "earlier_starts": row.method.earlier if row.method is not None else 0,
        "why": text_of(row.reasons),
    }
    return {name: plain(value) for name, value in found.items()}


def _agreement(one: Agreement) -> dict[str, Any]:
    compared = plain(one.comparison) if one.comparison is not None else {}
    return {
        "benchmark": one.benchmark,
        "at": one.at,
        "finding": one.finding,
        "sentence": agreement_text(one.swapped()),
        "baseline": compared.get("first_share"),
        "candidate": compared.get("second_share"),
        **{name: compared.get(name) for name in ("n", "p_value", "n_needed")},
    }


def _answer(answer: Answer) -> dict[str, Any]:
    rest = plain(replace(answer, comparisons=(), workloads=(), limits=None))
    del rest["comparisons"]
    return {
        **rest,
        "limits": limit_lines(answer.limits),
        "workloads": [_workload(one) for one in answer.workloads],
        "failures": [plain(one) | {"text": failure_text(one)} for one in answer.failures],
        "caveats": [plain(one) | {"text": caveat_text(one)} for one in answer.caveats],
        "next_steps": [plain(one) | {"why": purpose_text(one)} for one in answer.next_steps],
    }


def _workload(one: WorkloadAnswer) -> dict[str, Any]:
    others = [{"baseline": other.baseline, "candidate": other.candidate, **_row(other.row)} for other in one.others]
    return {
        **plain(replace(one, leads=(), others=())),
        "leads": [_lead(lead) for lead in one.leads],
        "others": others,
        "title": title_of(one),
        "sentence": sentence_of(one),
    }


def _lead(lead: LevelLead) -> dict[str, Any]:
    renamed = {
        "best": lead.best,
        "rival": lead.rival.label,
        "size": None if lead.few else lead.size,
        "bound": lead.rival.bound,
        "over_starts": lead.rival.tested,
        "unequal_rival": bool(lead.rival.unequal),
    }
    return {name: plain(renamed[name] if name in renamed else getattr(lead, name)) for name in LEAD_KEYS}


def finding_as_plain(one: LimitFinding) -> dict[str, Any]:
    """Return what limits an engine at a level as plain data."""
    return {
        "level": plain(one.level),
        "code": one.code,
        "reason": one.reason.name.lower(),
        "statement": statement_of(one),
        "evidence": plain(one.evidence),
        "proposals": [
            {"action": action_text(each), "cost": each.cost, "override": each.override} for each in one.proposals
        ],
        "improves": one.improves,
    }


def _decision(found: StudyDecision) -> dict[str, Any]:
    return {
        "study": found.study_id,
        "engine_s": found.engine_s,
        "budget_s": found.budget_s,
        "ended": found.ended,
        "pairs": [_pair(one) for one in found.pairs],
    }


def _pair(pair: Comparison) -> dict[str, Any]:
    baseline, candidate = pair.ids
    return {
        "baseline": baseline,
        "candidate": candidate,
        "margin": pair.margin,
        "verdict": word_of(pair.first.result if pair.first is not None else VerdictKind.OPEN),
        "gate": pair.gate,
        "starts": pair.starts_looked,
        "levels": {str(level): word_of(verdict) for level, verdict in pair.levels.items()},
        "starts_needed": pair.starts_needed,
    }


def _recommendation(found: Recommendation) -> dict[str, Any]:
    return {
        "use_case": found.use_case.name,
        "title": found.use_case.title,
        "group": found.group,
        "outcome": found.outcome,
        "best": found.best.entrant.run.run_id if found.best else None,
        "metric": found.use_case.metric,
        "unit": found.use_case.unit,
        "lead": found.lead,
        "lead_low": found.interval[0] if found.interval else None,
        "lead_high": found.interval[1] if found.interval else None,
        "rival": found.rival or None,
        "why": reason_text(found.why),
        "sureness": found.sureness,
        "text": use_text(found),
        "trust": found.trust,
        "trust_why": reservations_text(found),
        "reasons": [one.kind for one in found.reservations],
        "ranking": [
            {
                "run": score.entrant.run.run_id,
                "label": score.entrant.name,
                "value": score.value,
                "interval": list(score.interval) if score.interval else None,
                "at": plain(score.at),
                "slo_point": plain(score.slo_at),
                "doubtful": score.doubtful,
            }
            for score in found.ranking
        ],
        "missing": [{"name": one.name, "why": reason_text(one.why)} for one in found.missing],
        "would_change": [reason_text(one) for one in found.changes],
        "quality": [quality_text(one) for one in found.quality],
    }
