"""Comparisons as JUnit XML for a pipeline."""

from collections.abc import Sequence
from xml.etree import ElementTree

from servebench.analysis.quality.agreement import Agreement
from servebench.analysis.verdict.gate import Gate
from servebench.analysis.verdict.model import Comparison, ComparisonRow
from servebench.report.wording.comparison import (
    agreement_text,
    change_of,
    shared_text,
    summary_of,
    text_of,
    verdict_of,
    why_not_judged,
)
from servebench.util.safe_text import clean_xml


def to_junit(found: Sequence[Comparison], gate: Gate | None = None) -> str:
    """Return JUnit XML with a test case per row and benchmark.

    With a gate a regression beyond its limit is a failure, and what it has to judge and cannot is an error: a file without either
    is that of a gate that passed. Other rows without a verdict are skipped.
    """
    root = ElementTree.Element("testsuites", name="servebench compare")
    for comparison in found:
        suite = ElementTree.SubElement(root, "testsuite", name=f"{comparison.candidate} vs {comparison.baseline}")
        undecided = [] if gate is None else [row for one, row in gate.undecided if one is comparison]
        if None in undecided:
            case = ElementTree.SubElement(suite, "testcase", classname=comparison.candidate, name="gate")
            _end(case, "", error=summary_of(comparison))
        absent = [row for row in undecided if row is not None and row not in comparison.rows]
        for row in (*comparison.rows, *absent):
            _row_case(suite, comparison, row, gate, undecided=row in undecided)
        for agreement in comparison.agreements:
            _quality_case(suite, comparison.candidate, agreement, gate)
        counts = {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error"}
        for name, path in {**counts, "skipped": "testcase/skipped"}.items():
            suite.set(name, str(len(suite.findall(path))))
    ElementTree.indent(root)
    return clean_xml(ElementTree.tostring(root, encoding="unicode", xml_declaration=True)) + "\n"


def _row_case(
    suite: ElementTree.Element, comparison: Comparison, row: ComparisonRow, gate: Gate | None, *, undecided: bool
) -> None:
    why, candidate = text_of(row.reasons), comparison.candidate
    failure = error = skipped = ""
    if gate is not None and (candidate, row) in gate.regressions:
        failure = f"{change_of(row)} is a regression larger than {100 * gate.question.limit:g}%"
    elif gate is not None and undecided:
        error = why_not_judged(row, gate.question.limit) + shared_text(comparison)
    elif row.result in ("not enough data", "unequal_settings") or not row.competes:
        skipped = why or str(row.result)
    text = f"{change_of(row)}: {verdict_of(row)}" + (f"; {why}" if why else "")
    name = f"{row.metric.name} at {row.level}"
    case = ElementTree.SubElement(suite, "testcase", classname=candidate, name=name)
    _end(case, text, failure=failure, error=error, skipped=skipped)


def _quality_case(suite: ElementTree.Element, candidate: str, agreement: Agreement, gate: Gate | None) -> None:
    text = agreement_text(agreement.swapped())
    failure = skipped = ""
    if gate is not None and agreement.lost > gate.question.limit:
        failure = f"less accurate by {100 * agreement.lost:.1f}%, more than {100 * gate.question.limit:g}%"
    elif agreement.comparison is None or agreement.finding == "too small to tell":
        skipped = text
    name = f"quality {agreement.benchmark} at {agreement.at}"
    case = ElementTree.SubElement(suite, "testcase", classname=candidate, name=name)
    _end(case, text, failure=failure, skipped=skipped)


def _end(case: ElementTree.Element, text: str, *, failure: str = "", error: str = "", skipped: str = "") -> None:
    if failure or error:
        ElementTree.SubElement(case, "failure" if failure else "error", message=failure or error).text = text
    elif skipped:
        ElementTree.SubElement(case, "skipped", message=skipped)
    else:
        ElementTree.SubElement(case, "system-out").text = text
