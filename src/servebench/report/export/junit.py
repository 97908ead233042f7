"""Comparisons as JUnit XML for a pipeline."""

from collections.abc import Sequence
from xml.etree import ElementTree

from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.verdict.gate import Gate
from servebench.analysis.verdict.model import Comparison, ComparisonRow
from servebench.report.wording import comparison as wording
from servebench.util.safe_text import clean_xml

Case = tuple[str, str, str, str]
"""A test case: its name and text, the element that says how it ended, and the message of that."""


def to_junit(found: Sequence[Comparison], gate: Gate | None = None) -> str:
    """Return JUnit XML with a test case per row and benchmark.

    With a gate a regression beyond its limit is a failure, and what it has to judge and cannot is an error: a file without either
    is that of a gate that passed. Other rows without a verdict are skipped.
    """
    root = ElementTree.Element("testsuites", name="servebench compare")
    for comparison in found:
        suite = ElementTree.SubElement(root, "testsuite", name=f"{comparison.candidate} vs {comparison.baseline}")
        undecided = [] if gate is None else [row for one, row in gate.undecided if one is comparison]
        absent = [row for row in undecided if row is not None and row not in comparison.rows]
        cases = [("gate", "", "error", wording.summary_of(comparison))] * (None in undecided)
        cases += [_row_case(comparison, row, gate, undecided=row in undecided) for row in (*comparison.rows, *absent)]
        cases += [_quality_case(agreement, gate) for agreement in comparison.agreements]
        for name, text, kind, message in cases:
            case = ElementTree.SubElement(suite, "testcase", classname=comparison.candidate, name=name)
            end = ElementTree.SubElement(case, kind, {"message": message} if message else {})
            end.text = None if kind == "skipped" else text
        counts = {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error"}
        for name, path in {**counts, "skipped": "testcase/skipped"}.items():
            suite.set(name, str(len(suite.findall(path))))
    ElementTree.indent(root)
    return clean_xml(ElementTree.tostring(root, encoding="unicode", xml_declaration=True)) + "\n"


def _row_case(comparison: Comparison, row: ComparisonRow, gate: Gate | None, *, undecided: bool) -> Case:
    why, kind, message = wording.text_of(row.reasons), "system-out", ""
    if gate is not None and (comparison.candidate, row) in gate.regressions:
        kind = "failure"
        message = f"{wording.change_of(row)} is a regression larger than {100 * gate.question.limit:g}%"
    elif gate is not None and undecided:
        kind, message = "error", wording.why_not_judged(row, gate.question.limit) + wording.shared_text(comparison)
    elif row.result in ("not enough data", "unequal_settings") or not row.competes:
        kind, message = "skipped", why or str(row.result)
    text = f"{wording.change_of(row)}: {wording.verdict_of(row)}" + (f"; {why}" if why else "")
    return f"{row.metric.name} at {row.level}", text, kind, message


def _quality_case(agreement: Agreement, gate: Gate | None) -> Case:
    text, kind, message = wording.agreement_text(agreement.swapped()), "system-out", ""
    if gate is not None and agreement.lost > gate.question.limit:
        kind = "failure"
        message = f"less accurate by {100 * agreement.lost:.1f}%, more than {100 * gate.question.limit:g}%"
    elif agreement.comparison is None or agreement.finding == "too small to tell":
        kind, message = "skipped", text
    return f"quality {agreement.benchmark} at {agreement.at}", text, kind, message
