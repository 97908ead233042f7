"""A comparison as a table in the terminal, as Markdown, as JUnit XML for a pipeline, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from servebench.util.errors import StoreError
from servebench.util.figures import MISSING, number

STYLES = {"faster": "green", "slower": "red", "no difference": "cyan", "unequal_settings": "yellow"}


PAIRED = "†"
PAIRED_TOLD = (
    f"{PAIRED} each request against its twin, the same request in the other run: the median change of one request. "
    "The two figures beside it are medians of all requests, whose ratio may be another."
)


class Named(Protocol):
    """What is shown of a metric."""

    @property
    def name(self) -> str:
        """Its column."""
        ...

    @property
    def title(self) -> str:
        """What it is called."""
        ...


def titled(metric: Any) -> str:
    """What a metric is called, with its unit."""
    return f"{metric.title}, {metric.unit}" if metric.unit else str(metric.title)


def shown(value: float | None, metric: Named) -> str:
    """A figure of either side, with its unit where the title has none."""
    if value is None:
        return MISSING
    if math.isinf(value):
        return "failed"
    if metric.name == "failed_share":
        return f"{100 * value:.1f} %"
    return number(value)


def change(row: Any) -> str:
    """The effect with its interval, in percent."""
    if row.effect is None:
        return MISSING
    return f"{_signed(row.effect)} % [{_signed(row.low)}, {_signed(row.high)}]{PAIRED if row.paired else ''}"


def _signed(share: float | None) -> str:
    if share is None:
        return MISSING
    return f"{100 * share:+.1f}" if math.isfinite(share) else ("+∞" if share > 0 else "-∞")


def paired_told(comparison: Any) -> str | None:
    """What the mark of paired rows means, where there are any."""
    return PAIRED_TOLD if any(row.paired for row in comparison.rows) else None


def verdict(row: Any) -> str:
    """The row's verdict in words; one that does not compete in brackets."""
    text = f"no difference > {100 * row.bound:.1f} %" if row.result == "no difference" else str(row.result)
    return text if row.competes or row.result in ("not enough data", "unequal_settings") else f"({text})"


def print_comparison(comparison: Any, out: Console) -> None:
    """Write the verdict, the rows, and what is unequal."""
    out.print(Text(f"{comparison.candidate}  against  {comparison.baseline}", style="bold"))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name, justify in (("at", "right"), ("metric", "left"), ("baseline", "right"), ("candidate", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("change \\[95 %]", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for row in comparison.rows:
        why = f" · {row.why}" if row.why else ""
        table.add_row(
            row.level,
            titled(row.metric),
            shown(row.baseline, row.metric),
            shown(row.candidate, row.metric),
            change(row),
            Text(verdict(row), style=STYLES.get(row.result, "dim")).append(why, style="dim"),
        )
    out.print(table)
    if told := paired_told(comparison):
        out.print(told, markup=False, style="dim")
    for one in comparison.unequal:
        if one.matters:
            out.print(
                f"unequal: {one.key}: {one.baseline} against {one.candidate} ({one.reason})",
                markup=False,
                style="yellow",
            )
    minor = [one for one in comparison.unequal if not one.matters]
    if minor:
        out.print(f"also unequal, not mattering: {', '.join(one.key for one in minor)}", markup=False, style="dim")
    out.print(Text(f"verdict: {comparison.summary}", style=f"bold {STYLES.get(comparison.result, '')}".strip()))


AGREEMENT_STYLES = {"different": "red", "not different": "cyan", "too small to tell": "yellow"}


def print_agreements(agreements: Sequence[Any], out: Console) -> None:
    """Write what came of comparing answers, a line each: candidate against baseline."""
    for one in agreements:
        out.print(Text(f"quality: {one.turned().sentence}", style=AGREEMENT_STYLES.get(one.finding, "dim")))


PARITY_STYLES = {"the same": "green", "no more than itself": "cyan", "more than itself": "red"}


def parity_line(one: Any) -> str:
    """What came of setting two runs' answers side by side."""
    return f"parity at {one.at}: {one.sentence}"


def print_parities(parities: Sequence[Any], out: Console) -> None:
    """Write what came of setting two runs' answers side by side, a line for each concurrency."""
    for one in parities:
        out.print(Text(parity_line(one), style=PARITY_STYLES.get(one.finding, "yellow")))


def parity_dict(one: Any) -> dict[str, Any]:
    """A parity as plain data."""
    return {
        **{name: getattr(one, name) for name in ("at", "finding", "sentence", "p_value", "n_needed")},
        **{name: asdict(getattr(one, name)) for name in ("across", "own_first", "own_second")},
    }


def agreement_dict(one: Any) -> dict[str, Any]:
    """An agreement as plain data."""
    compared = asdict(one.comparison) if one.comparison is not None else {}
    return {
        "benchmark": one.benchmark,
        "at": one.at,
        "finding": one.finding,
        "sentence": one.turned().sentence,
        "baseline": compared.get("first_share"),
        "candidate": compared.get("second_share"),
        **{name: compared.get(name) for name in ("n", "p_value", "n_needed")},
    }


def as_dict(comparison: Any, agreements: Sequence[Any] = (), parities: Sequence[Any] = ()) -> dict[str, Any]:
    """A comparison as plain data for JSON; infinite numbers as null."""
    rows = []
    for row in comparison.rows:
        plain = {**asdict(row), "metric": row.metric.name}
        rows.append({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in plain.items()})
    return {
        "baseline": comparison.baseline,
        "candidate": comparison.candidate,
        "verdict": comparison.result,
        "summary": comparison.summary,
        "margin": comparison.margin,
        "bound": comparison.bound,
        "rows": rows,
        "unequal": [asdict(one) for one in comparison.unequal],
        "quality": [agreement_dict(one) for one in agreements],
        "parity": [parity_dict(one) for one in parities],
    }


def to_json(
    comparisons: Sequence[Any], quality: Sequence[Sequence[Any]] = (), parity: Sequence[Sequence[Any]] = ()
) -> str:
    """All comparisons as JSON; `quality` and `parity` have what came of comparing the answers of each."""
    both = zip(_beside(comparisons, quality), _beside(comparisons, parity), strict=True)
    told = [as_dict(one, answers, same) for (one, answers), (_, same) in both]
    return json.dumps(told, indent=2) + "\n"


def _beside(comparisons: Sequence[Any], quality: Sequence[Sequence[Any]]) -> list[tuple[Any, Sequence[Any]]]:
    """Each comparison with what came of comparing its answers, if anything."""
    return list(zip(comparisons, quality or [()] * len(comparisons), strict=True))


def _cell(text: str) -> str:
    """Text that cannot break out of a table cell of Markdown."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("`", "'")


def to_markdown(
    comparisons: Sequence[Any],
    gate: Sequence[str] | None = None,
    limit: float | None = None,
    quality: Sequence[Sequence[Any]] = (),
    parity: Sequence[Sequence[Any]] = (),
) -> str:
    """All comparisons as a Markdown page; `gate` are the regressions beyond `limit` that make a pipeline fail."""
    lines = ["# servebench compare", ""]
    if limit is not None:
        verdict_line = "**failed**" if gate else "**passed**"
        lines += [f"Gate: {verdict_line} (no regression larger than {100 * limit:g} %)", ""]
        lines += [f"- {_cell(one)}" for one in gate or ()] + ([""] if gate else [])
    for (one, answers), (_, same) in zip(_beside(comparisons, quality), _beside(comparisons, parity), strict=True):
        lines += [f"## {_cell(one.candidate)} against {_cell(one.baseline)}", "", f"**{_cell(one.summary)}**", ""]
        lines += ["| at | metric | baseline | candidate | change [95 %] | verdict |", "|---:|---|---:|---:|---:|---|"]
        for row in one.rows:
            cells = (
                row.level,
                titled(row.metric),
                shown(row.baseline, row.metric),
                shown(row.candidate, row.metric),
                change(row),
                verdict(row) + (f"; {row.why}" if row.why else ""),
            )
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        if told := paired_told(one):
            lines += ["", told]
        if one.unequal:
            lines += ["", "| unequal | baseline | candidate | matters |", "|---|---|---|---|"]
            lines += [
                f"| {_cell(d.key)} | {_cell(d.baseline)} | {_cell(d.candidate)} | {'yes: ' + d.reason if d.matters else 'no'} |"
                for d in one.unequal
            ]
        if answers:
            lines += ["", *(f"- quality: {_cell(answer.turned().sentence)}" for answer in answers)]
        if same:
            lines += ["", *(f"- {_cell(parity_line(found))}" for found in same)]
        lines.append("")
    return "\n".join(lines)


def to_junit(
    comparisons: Sequence[Any],
    failing: Sequence[tuple[str, Any]],
    limit: float | None,
    quality: Sequence[Sequence[Any]] = (),
) -> str:
    """JUnit XML: a test case a row. A regression beyond the limit is a failure, what could not be judged is skipped.

    `failing` are (candidate, row) of the regressions.
    """
    bad = {(name, row.level, row.metric.name) for name, row in failing}
    root = ElementTree.Element("testsuites", name="servebench compare")
    for one, answers in _beside(comparisons, quality):
        suite = ElementTree.SubElement(root, "testsuite", name=f"{one.candidate} against {one.baseline}")
        counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
        for row in one.rows:
            counts["tests"] += 1
            case = ElementTree.SubElement(
                suite, "testcase", classname=one.candidate, name=f"{row.metric.name} at {row.level}"
            )
            told = f"{change(row)}: {verdict(row)}" + (f"; {row.why}" if row.why else "")
            if (one.candidate, row.level, row.metric.name) in bad:
                counts["failures"] += 1
                beyond = f"beyond the limit of {100 * limit:g} %" if limit is not None else "slower"
                ElementTree.SubElement(case, "failure", message=f"{change(row)} is {beyond}").text = told
            elif row.result in ("not enough data", "unequal_settings") or not row.competes:
                counts["skipped"] += 1
                ElementTree.SubElement(case, "skipped", message=row.why or str(row.result))
            else:
                ElementTree.SubElement(case, "system-out").text = told
        for answer in answers:
            counts["tests"] += 1
            name = f"quality {answer.benchmark} at {answer.at}"
            case = ElementTree.SubElement(suite, "testcase", classname=one.candidate, name=name)
            if limit is not None and answer.lost > limit:
                counts["failures"] += 1
                beyond = f"less right by {100 * answer.lost:.1f} %, beyond the limit of {100 * limit:g} %"
                ElementTree.SubElement(case, "failure", message=beyond).text = answer.turned().sentence
            elif answer.comparison is None or answer.finding == "too small to tell":
                counts["skipped"] += 1
                ElementTree.SubElement(case, "skipped", message=answer.turned().sentence)
            else:
                ElementTree.SubElement(case, "system-out").text = answer.turned().sentence
        for name, count in counts.items():
            suite.set(name, str(count))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def write_page(path: Path, text: str) -> None:
    """Write a page that was asked for. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
