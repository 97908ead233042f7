"""Why a question has no verdict, or not a firm one: as values, which `report.wording` puts into words."""

from servebench.analysis.verdict.reasons import Method, MethodKind, Reason, ReasonKind, without_repeats

__all__ = ["Method", "MethodKind", "Reason", "ReasonKind", "without_repeats"]
